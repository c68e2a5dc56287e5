"""Profilers of a worker's steps, and device sensors. Importing it does not load torch."""
