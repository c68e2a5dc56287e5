"""The engine's counters and their export."""
