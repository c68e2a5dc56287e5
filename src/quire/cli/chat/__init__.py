"""`quire chat`: a conversation in the terminal, or one message per line from a pipe."""
