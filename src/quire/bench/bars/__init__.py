"""A table of bars: what each asks for, what was seen, and where the time goes of those missed."""
