"""The port at which other machines offer replicas: who gets which, and who is refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from quire.core.errors import ConfigError
from quire.executor.joining import Attach, Join, encode, own_join, wait_for_reply
from quire.frontend.far.gate import NEXT, POLL, TAKEN, Gate, Handed, end_of
from quire.parallel import handshake
from quire.parallel.handshake import dial
from quire.parallel.heartbeat import GoodbyeError, has_ended
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.e2e.serving import until
from tests.unit.executor.test_nodes import KEY

SECONDS = 30.0
STUCK = """
import socket, sys, time
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.connect(sys.argv[1])
end.send(sys.argv[2].encode())
time.sleep(60)
"""
"""A process that stands for a replica, and never reads."""


@pytest.fixture(scope="module")
def join() -> Join:
    return own_join(resolve(EngineArgs("embedded", num_threads=1), detect()).config, 2)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate for replicas 2 and 3."""
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    found = Gate(("127.0.0.1", 0), range(2, 4))
    yield found
    found.close()


def stands(gate: Gate, rank: int) -> socket.socket:
    """The connection of a process that stands for a replica."""
    end = end_of(gate.connect(rank)._command[-3], rank)
    end.settimeout(SECONDS)
    return end


def taken(end: socket.socket) -> Handed:
    """What the gate hands over next; the connection is closed."""
    data, found, _, _ = socket.recv_fds(end, 2**20, 1)
    for descriptor in found:
        os.close(descriptor)
    end.send(TAKEN)
    return msgspec.msgpack.decode(data, type=Handed)


def offers(gate: Gate, message: Join | Attach) -> socket.socket:
    """The connection of a machine that sends a message."""
    return dial(gate.address, KEY.encode(), encode(message), time.monotonic() + SECONDS)


def test_a_machine_waits_for_the_replica_it_offers(gate: Gate, join: Join) -> None:
    """The one that came first, until it ends; another is refused by name."""
    machine = offers(gate, join)
    end = stands(gate, 2)
    handed = taken(end)
    assert (handed.frame, handed.host) == (encode(join), "127.0.0.1")
    other = msgspec.structs.replace(join, agent="another")
    for refused, why in (
        (other, "replica 2 is there already, from 127.0.0.1"),
        (msgspec.structs.replace(join, node=1), "replica 1 is not one of those .*, 2, 3"),
    ):
        with offers(gate, refused) as second, pytest.raises(ConfigError, match=why):
            wait_for_reply(second, SECONDS)
    with offers(gate, Attach("a", 2, rows=False)), end:
        assert taken(end).frame == encode(Attach("a", 2, rows=False))
        end.send(NEXT)
        with offers(gate, other):
            assert taken(end).frame == encode(other)
    machine.close()


def test_the_same_machine_comes_again_and_waits_for_the_next_process(
    gate: Gate, join: Join
) -> None:
    """Not for the one that still stands for the core that it has lost."""
    first = stands(gate, 2)
    with offers(gate, join), offers(gate, join) as again:
        taken(first)
        assert not has_ended(again)
        with offers(gate, Attach("a", 3, rows=False)) as unknown:
            until(lambda: has_ended(unknown))
        first.close()
        with stands(gate, 2) as second:
            assert taken(second).frame == encode(join)


def test_missing_replicas_are_named_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch, join: Join
) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    gate = Gate(("127.0.0.1", 0), range(1, 4), seconds=1.0)
    try:
        with stands(gate, 1) as one, stands(gate, 2) as two, stands(gate, 3), offers(gate, join):
            taken(two)
            assert "No machine has offered replica 1, 3 at 127.0.0.1:" in taken(one).failure
    finally:
        gate.close()


def test_a_standing_process_that_reads_nothing_is_killed_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, join: Join
) -> None:
    """It counts as none that a machine has joined."""
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    gate = Gate(("127.0.0.1", 0), range(1, 3), seconds=1.0)
    path = gate.connect(2)._command[-3]
    command = [sys.executable, "-S", "-c", STUCK, path, "2"]
    with subprocess.Popen(command) as stuck, offers(gate, join):
        assert stuck.wait(SECONDS) == -signal.SIGKILL
    gate.close()
    assert "stands for replica 2 reads nothing" in caplog.text


def test_machines_hear_that_the_front_end_is_stopped(gate: Gate, join: Join) -> None:
    """One whose core runs, and one that waits for its standing process."""
    with stands(gate, 2) as end, offers(gate, join) as joined:
        taken(end)
        with offers(gate, msgspec.structs.replace(join, node=3)) as waits:
            until(lambda: 3 in gate._held)
            gate.close()
            for machine in (joined, waits):
                with pytest.raises(GoodbyeError):
                    wait_for_reply(machine, SECONDS)


def test_the_log_says_once_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, join: Join
) -> None:
    """And again when that changes."""
    monkeypatch.setattr(handshake, "REMIND_SECONDS", 0.0)
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    gate = Gate(("127.0.0.1", 0), range(2, 4))
    with stands(gate, 2) as two, stands(gate, 3) as three:
        with offers(gate, join):
            taken(two)
            until(lambda: len(missing(caplog)) == 1)
        with offers(gate, msgspec.structs.replace(join, node=3)):
            taken(three)
            two.send(NEXT)
            until(lambda: len(missing(caplog)) == 2)
            time.sleep(3 * POLL)
    gate.close()
    assert missing(caplog) == ["3", "2"]


def missing(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The replicas that each warning of the gate names."""
    found = [text.rpartition("for replicas ")[2] for text in caplog.messages]
    return [each for each in found if each in ("2", "3", "2, 3")]


def test_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:1.*--data-parallel-address"):
        Gate(("192.0.2.1", 1), range(1, 2))
    monkeypatch.delenv("QUIRE_CLUSTER_KEY")
    with pytest.raises(ConfigError, match="QUIRE_CLUSTER_KEY is not set"):
        Gate(("127.0.0.1", 0), range(1, 2))
