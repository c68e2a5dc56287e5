"""Find out why an engine is slow, and what makes it faster. Plain data in, a report out."""
