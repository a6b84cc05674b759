"""`make bench`: this server and Redis Streams side by side, doing the same work on the same machine."""
