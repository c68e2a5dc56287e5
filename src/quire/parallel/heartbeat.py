"""Whether the other end of a connection is still there.

TCP alone does not tell: between two machines a proxy or a firewall may drop everything, or hold the
connection open after its other end has gone. So both ends send a byte now and then.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

BEAT_SECONDS = 1.0
SILENT_SECONDS = 8.0
"""A peer that has sent nothing for so long is lost."""


class Loss(NamedTuple):
    """Who is lost, and how, as the end of a sentence."""

    name: str
    how: str = "has ended"


def wait_for_loss(
    peers: Mapping[socket.socket, str],
    others: Mapping[int, str] | None = None,
    woken: Mapping[int, str] | None = None,
) -> Loss:
    """Send beats to `peers` until something ends; return what. All have names.

    Args:
        peers: connections on which both ends call this.
        others: descriptors of connections that carry something else; only their end is noticed.
        woken: descriptors that end the wait once they are readable.
    """
    others, woken = others or {}, woken or {}
    by_number = {peer.fileno(): peer for peer in peers}
    heard = dict.fromkeys(by_number, time.monotonic())
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN | select.POLLRDHUP)
    for number in others:
        poll.register(number, select.POLLRDHUP)
    for number in woken:
        poll.register(number, select.POLLIN)
    beat = 0.0
    while True:
        now = time.monotonic()
        if now >= beat:
            for peer in peers:
                with contextlib.suppress(OSError):  # its end is noticed below, or its silence
                    peer.send(b"\0", socket.MSG_DONTWAIT)
            beat = now + BEAT_SECONDS
        for number, _ in poll.poll(max(0.0, beat - now) * 1000):
            if number not in by_number:
                return Loss(others.get(number) or woken[number])
            if not _takes_beats(by_number[number]):
                return Loss(peers[by_number[number]])
            heard[number] = time.monotonic()
        for number, last in heard.items():
            if now > last + SILENT_SECONDS:
                name = peers[by_number[number]]
                return Loss(name, f"was silent for {SILENT_SECONDS:.0f} s")


def has_ended(peer: socket.socket) -> bool:
    """Return whether the other end has closed the connection; reads nothing."""
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


def _takes_beats(peer: socket.socket) -> bool:
    """Read the beats that have come; return False at the end of the connection."""
    try:
        return bool(peer.recv(4096, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False
