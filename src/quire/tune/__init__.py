"""`quire tune`: search for the configuration that serves the most requests within an objective."""
