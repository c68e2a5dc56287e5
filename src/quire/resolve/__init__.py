"""Turn a user's arguments into the frozen configuration of the engine."""
