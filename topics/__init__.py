"""topics: named append-only logs over HTTP, where data loss is explicit and never silent."""

__version__ = "0.1.0"
