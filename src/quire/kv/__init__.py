"""Bookkeeping of the paged KV cache: which block holds which tokens of which request. No torch."""
