"""The owners of data: one process, one write-ahead log, its topics."""
