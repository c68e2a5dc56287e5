"""Two machines whose network holds connections open and lets nothing through."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator

import pytest

from quire.core.errors import EngineDeadError
from quire.executor.choice import make_executor
from quire.executor.joining import wait_for_reply
from quire.parallel import heartbeat
from tests.proxy import Proxy
from tests.unit.executor.test_multiproc import tokens_of
from tests.unit.executor.test_nodes import KEY, SECONDS, Lender, expected, nodes_config


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
    one, two = socket.socketpair()
    with one, two:
        yield one, two


def test_machines_notice_that_the_network_drops_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both do, although no connection has ended; then they compute together again."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 5.0)
    tokens, whole = expected(), nodes_config()
    proxy = Proxy(whole.cluster.master_port)
    other = dataclasses.replace(whole.cluster, master_port=proxy.port)
    lender = Lender(dataclasses.replace(whole, cluster=other))
    lost = threading.Event()
    for again in (False, True):
        executor = make_executor(whole, lambda _: lost.set())
        executor.start()
        assert tokens_of(executor, at_once=1) == tokens
        if not again:
            proxy.cut()
            assert lost.wait(SECONDS)
        else:
            monkeypatch.setattr("quire.executor.node.JOIN_SECONDS", 0.2)
        executor.shutdown()
    lender.join(SECONDS)
    assert isinstance(lender.error, EngineDeadError)
    proxy.close()


def test_a_silent_peer_is_lost(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.1)
    assert heartbeat.wait_for_loss({pair[0]: "node 1"}) == ("node 1", "was silent for 0 s")


def test_beats_hold_a_connection_until_it_ends(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", SECONDS)
    one, two = pair
    found: list[heartbeat.Loss] = []
    waits = threading.Thread(target=lambda: found.append(heartbeat.wait_for_loss({one: "node 1"})))
    waits.start()
    for _ in range(9):
        assert two.recv(1) == b"\0"
        two.send(b"\0")
    assert waits.is_alive()
    two.close()
    waits.join(SECONDS)
    assert found == [("node 1", "has ended")]


def test_something_else_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    """A descriptor that is readable."""
    one, _ = pair
    read, write = socket.socketpair()
    with read, write:
        write.send(b"1")
        loss = heartbeat.wait_for_loss({one: "node 1"}, woken={read.fileno(): "a worker"})
        assert loss == ("a worker", "has ended")


def test_a_goodbye_is_heard_among_beats_and_by_who_waits_for_a_reply(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says it waits for the other end, but not for ever."""
    monkeypatch.setattr(heartbeat, "GOODBYE_SECONDS", 0.05)
    one, two = pair
    heartbeat.check_peer(one)
    two.send(b"\0\0")
    heartbeat.say_goodbye([two])
    with pytest.raises(heartbeat.GoodbyeError):
        heartbeat.check_peer(one)
    with pytest.raises(ConnectionError, match="was closed"):
        heartbeat.check_peer(one)  # it was read
    for before in (b"", b"\0\0"):
        near, far = socket.socketpair()
        with near, far:
            far.send(before)
            heartbeat.say_goodbye([far])
            if before:
                loss = heartbeat.wait_for_loss({near: "node 0"})
                assert (*loss, loss.is_final) == ("node 0", "was stopped", True)
            else:
                with pytest.raises(heartbeat.GoodbyeError):
                    wait_for_reply(near, SECONDS)
