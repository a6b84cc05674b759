"""The HTTP contract, tested from outside: only requests and answers, never an import of the server."""
