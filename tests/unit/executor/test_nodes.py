"""Two machines, here two groups of processes on the loopback: one's tokens, and refusals."""

from __future__ import annotations

import dataclasses
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from quire.core.batch import Hops
from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.executor import cluster, joining
from quire.executor.choice import make_executor
from quire.executor.node import lend_workers
from quire.executor.uniproc import UniprocExecutor
from quire.parallel import handshake
from quire.parallel.handshake import MAGIC, Arrival, Doorman, HandshakeError, dial
from quire.parallel.stage import FarLink, RowShape, StageFailedError
from tests.ports import free_port
from tests.unit.executor.configs import TINY, config
from tests.unit.executor.test_multiproc import ranks, tokens_of

KEY = "a key of the tests, long enough"
SECONDS = 60.0


def nodes_config(nnodes: int = 2, **changes: object) -> EngineConfig:
    layers = dataclasses.replace(TINY, num_hidden_layers=nnodes + 1)
    return config(
        ops="cpu",
        model=layers,
        num_threads=1,
        stage_layers=(2, *[1] * (nnodes - 1)),
        cluster=ClusterConfig(nnodes, "127.0.0.1", free_port()),
        **changes,
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)


class Lender(threading.Thread):
    """A machine in a thread; `error` is what ended it."""

    def __init__(self, config: EngineConfig, node: int = 1) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._args = config, node
        self.start()

    def run(self) -> None:
        try:
            lend_workers(*self._args)
        except Exception as error:
            self.error = error


def expected() -> list[int]:
    model = nodes_config().model
    alone = UniprocExecutor(config(ops="cpu", model=model, num_threads=1))
    alone.start()
    tokens = tokens_of(alone, at_once=1)
    alone.shutdown()
    return tokens


def wait_until(what: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_machines_give_the_tokens_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a second core, after a worker of the other machine was killed between two steps."""
    tokens, whole = expected(), nodes_config()
    before = {rank.pid for rank in ranks()}
    lender = Lender(whole)
    lost = threading.Event()
    for again in (False, True):
        lost.clear()
        executor = make_executor(whole, lambda _: lost.set())
        executor.start()
        assert executor.facts["pipeline_parallel_size"] == 2
        assert tokens_of(executor, at_once=1) == tokens
        first, last = executor.stages
        assert min(first.busy, last.busy, first.hop_seconds) > 0
        assert (first.hop_bytes > 0, last.hops) == (True, 0)
        worker = next(rank for rank in ranks() if rank.pid not in before)
        before.add(worker.pid)
        if not again:
            worker.kill()
            assert lost.wait(SECONDS)
            with pytest.raises((EngineDeadError, EOFError)):
                tokens_of(executor, at_once=1)
        else:
            monkeypatch.setattr("quire.executor.node.JOIN_SECONDS", 0.2)
        executor.shutdown()
        wait_until(lambda worker=worker: not worker.is_running() or worker.status() == "zombie")
    lender.join(SECONDS)
    assert isinstance(lender.error, EngineDeadError)
    assert "node 0 at 127.0.0.1" in str(lender.error)


def refused(whole: EngineConfig, other: EngineConfig, node: int = 1) -> str:
    """Why node 0 refuses a machine."""
    gathering = cluster._Gathering(whole, whole.cluster, KEY.encode())

    def wait() -> None:
        with suppress(EngineDeadError):
            gathering.joins()

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    lender = Lender(other, node)
    lender.join(SECONDS)
    gathering._deadline = 0.0
    waits.join(SECONDS)
    gathering.close()
    assert isinstance(lender.error, ConfigError)
    return str(lender.error)


def test_a_machine_that_differs_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REMIND_SECONDS", 0.1)
    whole = nodes_config()
    join = joining.own_join(whole, 1)
    for changed, why in (
        ({"dtype": "bfloat16", "kv_cache_dtype": "float32"}, "dtype bfloat16, and node 0 has flo"),
        ({"block_size": 32}, "block_size 32, and node 0 has 16"),
        (
            {"scheduler": dataclasses.replace(whole.scheduler, max_num_seqs=9)},
            "max_num_seqs 9, and node 0 has 4",
        ),
        ({"model": dataclasses.replace(whole.model, vocab_size=65)}, "another model"),
        ({"cluster": dataclasses.replace(whole.cluster, nnodes=3)}, "nnodes 3, and node 0 has 2"),
    ):
        other = joining.own_join(dataclasses.replace(whole, **changed), 1)  # type: ignore[arg-type]
        assert why in str(joining.refusal(join, other))
    for changes, why in (
        ({"version": "0.0"}, "Quire 0.0, and node 0 has"),
        ({"model": "x"}, "weights differ"),
        ({"node": 2}, "node_rank is 2"),
    ):
        assert why in str(joining.refusal(join, msgspec.structs.replace(join, **changes)))
    assert joining.refusal(join, joining.own_join(whole, 1)) is None
    scheduler = dataclasses.replace(whole.scheduler, max_itl_stretch=2.0, max_model_len=64)
    memory = dataclasses.replace(whole, memory_budget_bytes=2**31, num_threads=7, model_path="m")
    memory = dataclasses.replace(memory, scheduler=scheduler, prefix_caching_hash_seed=3)
    assert joining.refusal(join, joining.own_join(memory, 1)) is None
    assert "block_size" in refused(whole, dataclasses.replace(whole, block_size=32))


def test_a_machine_with_another_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REMIND_SECONDS", 0.1)
    whole = nodes_config()
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY + "!")
    assert "another key" in refused(whole, whole)
    for wrong in ("", "short"):
        monkeypatch.setenv("QUIRE_CLUSTER_KEY", wrong)
        with pytest.raises(ConfigError, match="openssl rand"):
            make_executor(whole)


def test_a_missing_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.1)
    executor = make_executor(nodes_config(3))
    with pytest.raises(EngineDeadError, match=r"node 1, 2 of 3 did not connect"):
        executor.start()


def test_nothing_that_a_stranger_sends_stops_the_listener() -> None:
    """Garbage, a silent connection and half a handshake; then a machine with the key comes in."""
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
        found = [doorman.next(SECONDS) for _ in range(61)]
    assert sum(isinstance(one, HandshakeError) for one in found) == 60
    [arrival] = [one for one in found if isinstance(one, Arrival)]
    assert arrival.frame == b"hello"
    arrival.connection.close()
    silent.close()
    doorman.close()


def test_a_stranger_that_sends_a_byte_now_and_then_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All bytes of a handshake together have `GREET_SECONDS`."""
    monkeypatch.setattr(handshake, "GREET_SECONDS", 0.2)
    doorman = Doorman("127.0.0.1", 0, KEY.encode())
    with socket.create_connection(doorman.address) as stranger, suppress(OSError):
        for byte in MAGIC * 1000:
            if (found := doorman.next(0.05)) is not None:
                break
            stranger.sendall(bytes([byte]))
    assert "timed out" in str(found)
    doorman.close()


def test_rows_come_as_they_were_sent_until_the_stream_ends() -> None:
    """In pieces, with steps that the receiver skips; then nobody waits for ever."""
    shape = RowShape(most=6, width=5, dtype=np.dtype(np.float32), steps=2)
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    sender = FarLink(near.fileno(), shape, receives=False)
    receiver = FarLink(far.fileno(), shape, receives=True)
    rows = np.random.default_rng(0).standard_normal((6, 5), dtype=np.float32)
    sender.send(1, rows)
    sender.send(2, rows[:4] * 2)
    assert (receiver.receive(2) == rows[:4] * 2).all()
    wait_until(lambda: len(sender._hops) == 2)  # the receipts
    seconds, *counts = sender.take_hops()
    assert (counts, sender.take_hops()) == ([10 * 5 * 4, 2], Hops())
    assert 0 < seconds < SECONDS
    sender.fail(3)
    with pytest.raises(StageFailedError):
        receiver.receive(3)
    near.sendall(b"\xff" * 7)
    near.close()
    sender.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            receiver.receive(4)
    for end in (far, listener):
        end.close()
    receiver.close()
