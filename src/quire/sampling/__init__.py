"""Choosing the next token. A row's choice depends on its own logits, parameters, seed and position.

`sampler.Sampler` is the entry; `ops.sample_row` has the arithmetic.
"""
