"""Choosing the next token. A row's choice depends on its own logits, parameters, seed and position.

The heart is `sampler.Sampler`; the arithmetic is `ops.sampling`'s.
"""
