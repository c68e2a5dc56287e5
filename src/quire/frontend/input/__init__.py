"""From a prompt and its parameters to a request of the core."""
