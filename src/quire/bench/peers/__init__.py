"""Other engines on the same work: a module for each, which runs in the environment of its own."""
