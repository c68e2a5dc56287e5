"""Speculative decoding's proposers, which guess the next tokens of sequences.

A proposer cannot change an answer: `runner.drafts` accepts a draft only if it is the token that the
model samples. `runner.drafts.Proposer` is the protocol.
"""
