"""What lies between a connection and an endpoint: bytes, limits, streams, ids."""
