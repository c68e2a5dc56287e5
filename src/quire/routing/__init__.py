"""Chooses a replica for each request: the server's router and the simulator's."""
