"""Transport-free handlers: a parsed request in, a response out."""
