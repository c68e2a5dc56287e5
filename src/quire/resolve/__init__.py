"""From a user's arguments to the frozen configuration that the engine runs on."""
