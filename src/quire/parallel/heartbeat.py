"""Whether the other end of a connection is still there, and whether another one will follow it.

TCP alone does not tell: between two machines a proxy or a firewall may drop everything, or hold the
connection open after its other end has gone. So both ends send a byte now and then, and one that
is stopped on purpose says goodbye.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

BEAT_SECONDS = 1.0
SILENT_SECONDS = 8.0
"""A peer that has sent nothing for so long is lost."""
GOODBYE_SECONDS = 1.0
"""How long the other ends may take to close after a goodbye."""
_BEAT = b"\0"
_GOODBYE = b"\0\0\0\1\xc0"
"""Nil, as a frame of a handshake; and more than beats."""
_STOPPED = "was stopped"


class GoodbyeError(ConnectionError):
    """The other end was stopped on purpose; nothing follows it."""


class Loss(NamedTuple):
    """Who is lost, and how, as the end of a sentence."""

    name: str
    how: str = "has ended"

    @property
    def is_final(self) -> bool:
        """Return whether it said goodbye."""
        return self.how == _STOPPED


def wait_for_loss(
    peers: Mapping[socket.socket, str], woken: Mapping[int, str] | None = None
) -> Loss:
    """Send beats to `peers` until something ends; return what. All have names.

    Args:
        peers: connections on which both ends call this.
        woken: descriptors that end the wait once they are readable.
    """
    woken = woken or {}
    by_number = {peer.fileno(): peer for peer in peers}
    heard = dict.fromkeys(by_number, now := time.monotonic())
    poll = select.poll()
    for number in (*by_number, *woken):
        poll.register(number, select.POLLIN | select.POLLRDHUP)
    beat = 0.0
    while True:
        now, before = time.monotonic(), now
        if now > before + SILENT_SECONDS:  # this process was stopped, and the others perhaps, too
            heard = dict.fromkeys(heard, now)
        if now >= beat:
            for peer in peers:
                _send(peer, _BEAT)
            beat = now + BEAT_SECONDS
        for number, _ in poll.poll(max(0.0, beat - now) * 1000):
            if number not in by_number:
                return Loss(woken[number])
            name = peers[by_number[number]]
            if not (said := _received(by_number[number])):
                return Loss(name)
            if said.strip(_BEAT):
                return Loss(name, _STOPPED)
            heard[number] = time.monotonic()
        for number, last in heard.items():
            if now > last + SILENT_SECONDS:
                name = peers[by_number[number]]
                return Loss(name, f"was silent for {SILENT_SECONDS:.0f} s")


def say_goodbye(peers: Collection[socket.socket]) -> None:
    """Say that nothing follows, and wait a moment until the other ends have closed."""
    for peer in peers:
        _send(peer, _GOODBYE)
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
    end = time.monotonic() + GOODBYE_SECONDS
    while time.monotonic() < end and not all(map(has_ended, peers)):
        time.sleep(0.01)


def check_peer(peer: socket.socket) -> None:
    """Raise `ConnectionError` if the other end has closed the connection."""
    if has_ended(peer):
        if _received(peer).strip(_BEAT):
            raise GoodbyeError("it was stopped")
        raise ConnectionError("its connection was closed")


def has_ended(peer: socket.socket) -> bool:
    """Return whether the other end has closed the connection; reads nothing."""
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


def _send(peer: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # its end, or its silence, is noticed elsewhere
        peer.send(data, socket.MSG_DONTWAIT)


def _received(peer: socket.socket) -> bytes:
    """Return what has come, nothing at the end of the connection; a beat if nothing is new."""
    try:
        return peer.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return _BEAT
    except OSError:
        return b""
