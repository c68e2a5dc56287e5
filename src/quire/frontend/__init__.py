"""Everything before the wire to the core: prompts in, text out. No torch."""
