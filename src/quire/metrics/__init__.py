"""What the engine counts and how it is exported."""
