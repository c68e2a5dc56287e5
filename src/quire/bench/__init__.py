"""Measurements: `quire bench`. Public interfaces only."""
