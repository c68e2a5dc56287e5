"""Tokenizers, by format, and the one interface to them."""
