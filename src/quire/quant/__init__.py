"""Quantized weights: how checkpoints store them, and how dense ones are rounded while loading."""
