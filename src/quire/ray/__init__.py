"""Ray starts the machines of an engine (`nodes`); needs `quire[ray]`."""
