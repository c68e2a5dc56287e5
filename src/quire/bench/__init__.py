"""Measurements: `quire bench latency|throughput|serve|startup`. Public interfaces only."""
