"""The write-ahead log of one shard: chained, checksummed batches in numbered files."""
