"""Forty things that a new user types, and what comes back: `python -m tools.newcomer`."""
