"""Profilers of a worker's steps, and readings of its devices. Importing it loads no torch."""
