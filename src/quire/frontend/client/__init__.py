"""The connection to the core's process, and its supervision."""
