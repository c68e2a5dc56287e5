"""Runs a step: holds the sequences' state and the KV tensors, and asks model and sampler."""
