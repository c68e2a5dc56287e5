"""A table of performance targets ("bars"), their measurements, and where missed ones lose time."""
