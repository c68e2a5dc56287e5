"""Thirty complaints about the speed of vLLM, each a scenario that says how Quire does."""
