"""Runs steps: the sequences' state, the KV tensors, the model and the sampler."""
