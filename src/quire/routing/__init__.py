"""Chooses a replica for each request by its cached prefix; `simulate` uses it."""
