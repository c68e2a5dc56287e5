"""Ports for what must know its port before it listens."""

from __future__ import annotations

import random
import socket

_RANDOM = random.SystemRandom()
OWN = range(20_000, 32_000)
"""Linux gives none of these to a socket that asks for any port, so nobody takes one meanwhile."""


def free_port() -> int:
    """Return a free port with a free one behind it."""
    while True:
        port = _RANDOM.choice(OWN)
        try:
            for each in (port, port + 1):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        return port
