"""Two machines, here two groups of processes on the loopback: one's tokens, and refusals."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

import quire
from quire.core.batch import Hops
from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.executor import cluster, joining
from quire.executor.choice import make_executor
from quire.executor.node import Machine, lend_workers
from quire.executor.uniproc import UniprocExecutor
from quire.parallel import handshake
from quire.parallel.handshake import Arrival, Doorman, dial
from quire.parallel.heartbeat import say_goodbye
from quire.parallel.stage import FarLink, RowShape, StageFailedError
from tests.certificate import write_pem
from tests.ports import free_port
from tests.proxy import Proxy
from tests.unit.executor.configs import TINY, config
from tests.unit.executor.test_multiproc import prompt_step, ranks, tokens_of

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


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, also if it goes meanwhile."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(what: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("encrypts", [False, True], ids=["plain", "encrypted"])
def test_two_machines_give_the_tokens_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, encrypts: bool
) -> None:
    """Also of a second core, after a worker of the other machine was killed between two steps. That
    machine then waits for a third, unless node 0 says goodbye. A prompt crosses the network in
    clear, unless it is encrypted."""
    if encrypts:
        monkeypatch.setenv("QUIRE_CLUSTER_TLS", write_pem(tmp_path / "cluster.pem"))
    tokens, whole, prompt = expected(), nodes_config(), [*range(20, 36)]
    before = {rank.pid for rank in ranks()}
    proxy = Proxy(whole.cluster.master_port)
    where = dataclasses.replace(whole.cluster, master_port=proxy.port)
    lender = Lender(dataclasses.replace(whole, cluster=where))
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
            executor.execute(prompt_step(prompt))
            monkeypatch.setattr("quire.executor.node.JOIN_SECONDS", 0.2)
            if encrypts:
                executor.retire()
        executor.shutdown()
        wait_until(lambda worker=worker: has_ended(worker))
    lender.join(SECONDS)
    assert not lender.is_alive()
    if encrypts:
        assert lender.error is None
    else:
        assert isinstance(lender.error, EngineDeadError)
        assert "node 0 at 127.0.0.1" in str(lender.error)
    proxy.close()
    assert (bytes(prompt) in b"".join(proxy.passed)) is not encrypts


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
    monkeypatch.setattr(handshake, "REMIND_SECONDS", 0.1)
    whole = nodes_config()
    join = joining.own_join(whole, 1)
    for changed, why in (
        ({"stage_layers": (1, 1, 1)}, "pipeline_parallel_size 3, and node 0 has 2"),
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
        ({"replicas": 3}, "data_parallel_size 3, and node 0 has 1"),
    ):
        assert why in str(joining.refusal(join, msgspec.structs.replace(join, **changes)))
    assert joining.refusal(join, joining.own_join(whole, 1)) is None
    scheduler = dataclasses.replace(whole.scheduler, max_itl_stretch=2.0, max_model_len=64)
    memory = dataclasses.replace(whole, memory_budget_bytes=2**31, num_threads=7, model_path="m")
    memory = dataclasses.replace(memory, scheduler=scheduler, prefix_caching_hash_seed=3)
    assert joining.refusal(join, joining.own_join(memory, 1)) is None
    assert "block_size" in refused(whole, dataclasses.replace(whole, block_size=32))


def test_a_machine_with_another_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "REMIND_SECONDS", 0.1)
    whole = nodes_config()
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY + "!")
    assert "another key" in refused(whole, whole)
    for wrong in ("", "short"):
        monkeypatch.setenv("QUIRE_CLUSTER_KEY", wrong)
        with pytest.raises(ConfigError, match="openssl rand"):
            make_executor(whole)
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", "\udcff" * 16)
    assert joining.cluster_key() == b"\xff" * 16


@contextmanager
def gathering(whole: EngineConfig) -> Iterator[Future[object]]:
    """What comes of node 0's wait for all machines."""
    found = cluster._Gathering(whole, whole.cluster, KEY.encode())
    with ThreadPoolExecutor() as pool:
        try:
            yield pool.submit(lambda: found.joins() and found.attached())
        finally:
            found._deadline = 0.0  # the pool waits for its thread
            found.close()
            for connection in found.connections.values():
                connection.close()


def test_another_versions_messages_are_refused_by_name() -> None:
    """They need not be of the same shape."""
    whole = nodes_config()
    with gathering(whole):
        for join, why in (
            (["Join", "9.9", {"flag": 1}], "it has Quire 9.9, and node 0 has"),
            (["Join", quire.__version__, 1], "no valid message"),
            (["Leave"], "no valid message"),
        ):
            where = whole.cluster.master_addr, whole.cluster.master_port
            frame = msgspec.msgpack.encode(join)
            machine = dial(where, KEY.encode(), frame, time.monotonic() + SECONDS)
            with machine, pytest.raises(ConfigError, match=why):
                joining.wait_for_reply(machine, SECONDS)


def test_a_machine_that_has_left_is_awaited_and_then_named() -> None:
    """Also one that joined before; each connection of a worker counts once."""
    whole = nodes_config(3)
    where = whole.cluster.master_addr, whole.cluster.master_port

    def dialled(message: joining.Join | joining.Attach) -> socket.socket:
        end = time.monotonic() + SECONDS
        return dial(where, KEY.encode(), joining.encode(message), end)

    with gathering(whole) as result:
        dialled(joining.own_join(whole, 2)).close()
        first, second = (dialled(joining.own_join(whole, node)) for node in (1, 2))
        attempt = joining.wait_for_reply(first, SECONDS).attempt
        assert joining.wait_for_reply(second, SECONDS).attempt == attempt
        for worker, rows in ((1, False), (1, False), (9, False), (1, True), (1, True)):
            dialled(joining.Attach(attempt, worker, rows)).close()
        assert not result.done()
        second.close()
        with pytest.raises(EngineDeadError, match=r"Node 2 at 127.0.0.1 ended before"):
            result.result(SECONDS)
        first.close()


def test_of_two_machines_with_one_rank_the_second_is_refused() -> None:
    """The first may come back, and the start goes on."""
    whole = nodes_config(3)
    where = whole.cluster.master_addr, whole.cluster.master_port

    def joined(join: joining.Join) -> socket.socket:
        return dial(where, KEY.encode(), joining.encode(join), time.monotonic() + SECONDS)

    def refusal(join: joining.Join) -> str:
        with joined(join) as machine, pytest.raises(ConfigError) as refused:
            joining.wait_for_reply(machine, SECONDS)
        return str(refused.value)

    one, other, two = (joining.own_join(whole, node) for node in (1, 1, 2))
    with gathering(whole) as result, joined(one) as first:
        assert "node 1 is there already, from 127.0.0.1" in refusal(other)
        with joined(one) as again, joined(two) as second:
            assert first.recv(1) == b""
            for machine in (again, second):
                joining.wait_for_reply(machine, SECONDS)
            assert "node 1 is there already" in refusal(other)
            assert "node_rank is 7" in refusal(msgspec.structs.replace(two, node=7))
            assert not result.done()


def test_a_machine_logs_that_it_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshake, "REMIND_SECONDS", 0.05)
    near, far = socket.socketpair()
    with near, far, pytest.raises(OSError, match="timed out"):
        joining.wait_for_reply(near, 0.3)
    assert "waiting for node 0, which waits for other machines" in caplog.text


def test_a_machine_that_waits_for_others_hears_that_node_0_is_stopped() -> None:
    whole = nodes_config(3)
    found = cluster._Gathering(whole, whole.cluster, KEY.encode())

    def wait() -> None:
        with suppress(EngineDeadError):
            found.joins()

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    lender = Lender(whole)
    wait_until(lambda: found.connections != {})
    say_goodbye(found.connections.values())
    lender.join(SECONDS)
    assert (lender.is_alive(), lender.error) == (False, None)
    found._deadline = 0.0
    waits.join(SECONDS)
    found.close()
    for connection in found.connections.values():
        connection.close()


def test_a_machine_listens_only_until_the_next_one_has_come() -> None:
    """If node 0 ends meanwhile, it does not wait for the next one any longer. After a goodbye it
    does not join again."""
    whole = nodes_config(3)
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        whole = dataclasses.replace(
            whole, cluster=dataclasses.replace(whole.cluster, master_addr="::1")
        )
    node_0 = Doorman(whole.cluster.master_addr, whole.cluster.master_port, KEY.encode())
    behind = whole.cluster.master_addr, whole.cluster.master_port + 1
    before = {rank.pid for rank in ranks()}
    joins_again: list[bool] = []

    def lend() -> None:
        joins_again.append(Machine(whole, 1, KEY.encode()).lend())

    def lent() -> tuple[threading.Thread, list[socket.socket]]:
        machine = threading.Thread(target=lend, daemon=True)
        machine.start()
        ends = []
        for kind in (joining.Join, joining.Attach, joining.Attach):
            arrival = node_0.next(SECONDS)
            assert isinstance(arrival, Arrival)
            assert isinstance(joining.offer_of(arrival.frame), kind)
            if kind is joining.Join:
                welcome = joining.encode(joining.Welcome("attempt", None, whole))
                handshake.send_frame(arrival.connection, welcome)
            ends.append(arrival.connection)
        return machine, ends

    machine, ends = lent()
    attach = joining.encode(joining.Attach("attempt", 1, rows=True))
    with dial(behind, KEY.encode(), attach, time.monotonic() + SECONDS) as wrong:
        wrong.settimeout(SECONDS)
        assert wrong.recv(1) == b""
    ends[0].close()
    machine.join(SECONDS)
    assert not machine.is_alive()
    assert {rank.pid for rank in ranks()} <= before
    machine, stopped = lent()
    say_goodbye(stopped[:1])
    machine.join(SECONDS)
    assert joins_again == [True, False]
    machine, again = lent()
    attach = joining.encode(joining.Attach("attempt", 2, rows=True))
    with dial(behind, KEY.encode(), attach, time.monotonic() + SECONDS):
        wait_until(lambda: {rank.pid for rank in ranks()} - before != set())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(behind)
        for end in (*ends, *stopped, *again):
            end.close()
        machine.join(SECONDS)
    assert joins_again == [True, False, True]
    node_0.close()


def test_a_missing_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.1)
    executor = make_executor(nodes_config(3))
    with pytest.raises(
        EngineDeadError,
        match=r"node 1, 2 of 3 did not connect to 127.0.0.1:.*Start `quire serve` there",
    ):
        executor.start()


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
    sender.send(5, rows)
    with pytest.raises(EOFError, match="skipped step 4: rows of step 5"):
        receiver.receive(4)
    near.sendall(b"\xff" * 7)
    near.close()
    sender.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            receiver.receive(4)
    for end in (far, listener):
        end.close()
    receiver.close()
