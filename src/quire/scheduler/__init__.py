"""Which tokens of which requests are computed next. No torch; time is an argument."""
