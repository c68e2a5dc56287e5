"""Executors compute steps: in this process (`uniproc`), or on several ranks (`multiproc`)."""
