"""Processes that tokenize prompts and check structures."""
