"""The `quire` command: thin, and quick to answer."""
