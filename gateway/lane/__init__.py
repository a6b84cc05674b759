"""The fast lane: HTTP/1.1 served by one reactor inside trio, without a task per connection."""
