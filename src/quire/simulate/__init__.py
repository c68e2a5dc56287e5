"""The real scheduler and KV manager under a virtual clock, with a modelled executor."""
