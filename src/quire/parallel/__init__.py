"""Several processes that compute one model: who belongs together, and what they share. No torch."""
