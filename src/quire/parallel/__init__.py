"""Memory that the processes of one model share. No torch."""
