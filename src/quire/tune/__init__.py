"""`quire tune`: the configuration that serves the most requests under an objective."""
