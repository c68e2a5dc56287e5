"""Connections between machines: strangers, and waits for a listener."""

from __future__ import annotations

import errno
import random
import socket
import time
from contextlib import suppress

import pytest

from quire.parallel import handshake
from quire.parallel.handshake import MAGIC, MOST_LOGGED, Doorman, dial
from tests.e2e.serving import until
from tests.ports import free_port

KEY = "a key of the tests, long enough"
SECONDS = 60.0


def test_nothing_that_a_stranger_sends_stops_the_listener(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage, a silent connection and half a handshake; then a machine with the key comes in.

    Some are logged, and how many there were in all.
    """
    doorman = Doorman("127.0.0.1", 0, KEY.encode())
    noise = random.Random(5)
    silent = socket.create_connection(doorman.address)
    for number in range(60):
        size = noise.randrange(200)
        words = MAGIC * (number % 2) + noise.randbytes(size)
        with socket.create_connection(doorman.address) as stranger, suppress(OSError):
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    with dial(doorman.address, KEY.encode(), b"hello", time.monotonic() + SECONDS):
        arrival = doorman.next(SECONDS)
    assert arrival.frame == b"hello"
    until(lambda: doorman._unlogged == 60 - MOST_LOGGED)
    assert len(caplog.messages) == MOST_LOGGED
    monkeypatch.setattr(handshake, "LOG_SECONDS", 0.0)
    socket.create_connection(doorman.address).close()
    until(lambda: caplog.messages[-1].endswith(f" ({60 - MOST_LOGGED} others were, too)"))
    arrival.connection.close()
    silent.close()
    doorman.close()


def test_a_stranger_that_sends_a_byte_now_and_then_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All bytes of a handshake together have `GREET_SECONDS`."""
    monkeypatch.setattr(handshake, "GREET_SECONDS", 0.2)
    doorman = Doorman("127.0.0.1", 0, KEY.encode())
    with socket.create_connection(doorman.address) as stranger, suppress(OSError):
        for byte in MAGIC * 1000:
            if caplog.messages:
                break
            stranger.sendall(bytes([byte]))
            time.sleep(0.05)
    assert "timed out" in caplog.text
    doorman.close()


def test_silent_strangers_keep_no_machine_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: the oldest are ended."""
    monkeypatch.setattr(handshake, "GREET_SECONDS", SECONDS)
    monkeypatch.setattr(handshake, "MOST_GREETED", 3)
    doorman = Doorman("127.0.0.1", 0, KEY.encode())
    strangers = [socket.create_connection(doorman.address) for _ in range(5)]
    for stranger in strangers[:2]:
        assert stranger.recv(1) == b""
    with dial(doorman.address, KEY.encode(), b"hello", time.monotonic() + SECONDS):
        arrival = doorman.next(SECONDS)
    assert arrival.frame == b"hello"
    arrival.connection.close()
    for stranger in strangers:
        stranger.close()
    doorman.close()


def test_a_listener_outlives_a_failed_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a stranger is gone at once, or this process has no descriptor left for a moment."""
    fails = [OSError(errno.EMFILE, "no descriptor"), OSError(errno.ECONNABORTED, "gone")]
    accept = socket.socket.accept

    def failing(listener: socket.socket) -> object:
        if fails:
            raise fails.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    doorman = Doorman("127.0.0.1", 0, KEY.encode())
    with dial(doorman.address, KEY.encode(), b"hello", time.monotonic() + SECONDS):
        arrival = doorman.next(SECONDS)
    arrival.connection.close()
    doorman.close()


def test_who_dials_logs_for_whom_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshake, "REMIND_SECONDS", 0.05)
    nobody = "127.0.0.1", free_port()
    with pytest.raises(TimeoutError, match="does not answer"):
        dial(nobody, KEY.encode(), b"", time.monotonic() + 0.3)
    assert f"waiting for 127.0.0.1:{nobody[1]}: Connection refused. Is it" in caplog.text
    assert (handshake.at(("a", 1)), handshake.at(("::1", 1))) == ("a:1", "[::1]:1")


def test_who_dials_may_stop() -> None:
    def stop() -> None:
        raise ConnectionError("node 0 has ended")

    with pytest.raises(ConnectionError, match="node 0 has ended"):
        dial(("127.0.0.1", free_port()), KEY.encode(), b"", time.monotonic() + SECONDS, stop)
