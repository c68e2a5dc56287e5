"""Why is it slow, and what would make it faster? Plain data in, a report out; no torch."""
