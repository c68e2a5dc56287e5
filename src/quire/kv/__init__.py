"""The paged KV cache's bookkeeping: which block holds which tokens of which request. No torch."""
