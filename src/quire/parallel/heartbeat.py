"""Whether the other end of a connection is still there.

TCP alone does not tell: between two machines a proxy or a firewall may drop everything, or hold the
connection open after its other end has gone. So both ends send a byte now and then.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Sequence

BEAT_SECONDS = 1.0
SILENT_SECONDS = 8.0
"""A peer that has sent nothing for so long is lost."""


def wait_for_loss(
    peers: Sequence[socket.socket], others: Iterable[int] = (), woken: Iterable[int] = ()
) -> str:
    """Send beats to `peers` until something ends; return what, as the end of a sentence.

    Args:
        peers: connections on which both ends call this.
        others: descriptors of connections that carry something else; only their end is noticed.
        woken: descriptors that end the wait once they are readable.
    """
    heard = dict.fromkeys((peer.fileno() for peer in peers), time.monotonic())
    by_number = {peer.fileno(): peer for peer in peers}
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
                return "has ended"
            if not _takes_beats(by_number[number]):
                return "has ended"
            heard[number] = time.monotonic()
        if now > min(heard.values(), default=now) + SILENT_SECONDS:
            return f"was silent for {SILENT_SECONDS:.0f} s"


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
