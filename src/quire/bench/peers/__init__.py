"""Other engines on the same work: one module each, which runs in the engine's environment."""
