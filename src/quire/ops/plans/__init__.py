"""Plans: steps recorded once and replayed natively."""
