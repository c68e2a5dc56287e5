"""Find out why an engine is slow, and which flags make it faster. Evidence in, report out."""
