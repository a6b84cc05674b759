"""The front door: HTTP in, shard messages out. No data and no decision about records lives here."""
