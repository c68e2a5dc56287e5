"""Mutation testing of the rooms whose mistakes give wrong answers: `python -m tools.mutants`."""
