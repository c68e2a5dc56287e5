"""Choosing the next token. A row's choice depends on its own logits, parameters, seed and position.

The heart is `sampler.Sampler`; each other file holds one step on the way from logits to a token.
"""
