"""A replica's core on another machine, without Ray: frames, clocks and refusals."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from quire.core.errors import ConfigError
from quire.core.messages import (
    AddRequest,
    CoreOutput,
    Ready,
    RequestEvent,
    Shutdown,
    StepOutputs,
)
from quire.core.sampling_params import SamplingParams
from quire.executor.joining import Join, own_join
from quire.frontend.client.replica_configs import replica_configs
from quire.frontend.far.lent import Hello
from quire.frontend.far.lines import DRIFT, Clock, Lines
from quire.parallel import heartbeat
from quire.parallel.handshake import Arrival, Doorman
from quire.ray.far_core import Asked, lend_core, own_config
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.frames import ClosedError, FrameSocket
from quire.system.hardware import detect

KEY = b"a key of the tests, long enough"
SECONDS = 60.0
ARGS = EngineArgs(
    "embedded",
    data_parallel_size=2,
    data_parallel_backend="ray",
    num_threads=1,
    num_gpu_blocks_override=64,
)
encode = msgspec.msgpack.encode


def wanted() -> Join:
    """A front end's configuration."""
    return own_join(resolve(ARGS, detect()).config, 0)


def test_a_clock_follows_the_shortest_way_and_the_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("quire.frontend.far.lines.time.monotonic", lambda: now)
    clock = Clock(39.5)  # 60 s behind, and the first message took 0.5 s
    assert clock.behind == 60.5
    now = 101.0
    clock.hear(40.9)
    assert clock.behind == pytest.approx(60.1)
    now = 111.0
    clock.hear(0.0)
    assert clock.behind == pytest.approx(60.1 + 10 * DRIFT)


def test_times_of_another_machine_become_those_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.frontend.far.lines.time.monotonic", lambda: 100.0)
    clock = Clock(40.0)
    clock.hear = lambda _: None  # type: ignore[method-assign]
    ready = Ready(1, 16, {}, {}, began=5.0)
    clock.take(ready)
    output = CoreOutput("a", [1], scheduled_time=7.0)
    step = StepOutputs(
        [output, CoreOutput("b", [1])], None, 9.0,
        events=[RequestEvent("a", "prefill", 6.0, 4, end=8.0), RequestEvent("a", "preempted", 6.0)],
    )  # fmt: skip
    clock.take(step)
    times = [ready.began, step.timestamp, output.scheduled_time, step.events[0].time]
    times += [step.events[0].end, step.events[1].time]
    assert times == pytest.approx([65.0, 69.0, 67.0, 66.0, 68.0, 66.0])
    assert (step.outputs[1].scheduled_time, step.events[1].end) == (0.0, 0.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may send nothing for longer than a lost one is waited for."""
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", SECONDS)


class Relay:
    """The lines between a front end and a core; `why` is their end."""

    def __init__(self) -> None:
        self.front_end, near = socket.socketpair()
        self.core, line = socket.socketpair()
        self.beats, beats = socket.socketpair()
        self._near = near
        self.why: object = "runs"
        self._lines = Lines(FrameSocket(near), line, beats, Clock(time.monotonic() - 60.0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.ends = FrameSocket(self.front_end), FrameSocket(self.core)

    def _run(self) -> None:
        try:
            self.why = self._lines.run()
        except ClosedError as error:
            self.why = error

    def wait(self) -> object:
        """The lines' end."""
        self._thread.join(SECONDS)
        return self.why

    def close(self) -> None:
        for end in (self.front_end, self.core, self.beats):
            end.close()
        self.wait()
        self._near.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    found = Relay()
    yield found
    found.close()


def test_frames_pass_both_ways_and_bad_ones_do_not(relay: Relay) -> None:
    front_end, core = relay.ends
    front_end.send(b"\xc1")
    front_end.send(encode(AddRequest("a", b"", SamplingParams(), time.monotonic())))
    [frame] = core.receive(wait=True)
    request = msgspec.msgpack.decode(frame, type=AddRequest)
    assert request.arrival_time == pytest.approx(time.monotonic() - 60.0, abs=SECONDS / 2)
    core.send(b"\xc1")
    core.send(encode(StepOutputs([], None, time.monotonic() - 60.0)))
    [frame] = front_end.receive(wait=True)
    step = msgspec.msgpack.decode(frame, type=StepOutputs)
    assert step.timestamp == pytest.approx(time.monotonic(), abs=SECONDS / 2)
    front_end.send(encode(Shutdown()))
    assert core.receive(wait=True)
    core.close()
    assert relay.wait() is None


def test_a_front_end_that_ends_is_noticed(relay: Relay) -> None:
    relay.front_end.close()
    assert isinstance(relay.wait(), ClosedError)


@pytest.mark.parametrize("silent", [False, True])
def test_a_core_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch, *, silent: bool) -> None:
    """Its end, or a machine that says nothing any more."""
    if silent:
        monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.1)
        monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    relay = Relay()
    if not silent:
        relay.core.close()
    assert relay.wait() == ("was silent for 0 s" if silent else "has ended")
    relay.close()


def test_a_machine_has_its_own_paths_and_the_front_ends_limits() -> None:
    """The last of several replicas joins, too, whatever is its own."""
    join = wanted()
    config = replica_configs(join.config, range(3))[-1]
    config = replace(config, cpus=(0,), report_cache=True, model_path="elsewhere")
    found = own_config("m", msgspec.structs.replace(join, config=config))
    own = {"cpus": (), "first_gpu": 0, "report_cache": True, "model_path": join.config.model_path}
    assert {name: getattr(found, name) for name in own} == own
    assert found.cluster.flags == ""


def test_another_quire_or_model_is_refused_by_name() -> None:
    join = wanted()
    with pytest.raises(ConfigError, match=r"m has Quire .*, and node 0 has 0\.0"):
        own_config("m", msgspec.structs.replace(join, version="0.0"))
    with pytest.raises(ConfigError, match="m has another model"):
        own_config("m", msgspec.structs.replace(join, model="x"))


def test_a_core_is_lent_until_its_front_end_ends() -> None:
    """It starts, says that it is ready, and ends with the heartbeats. A refusal says why."""
    doorman = Doorman("127.0.0.1", 0, KEY)
    join, reports = wanted(), []
    lends = threading.Thread(
        target=lambda: reports.append(lend_core("m", Asked(join, doorman.address, KEY)))
    )
    lends.start()
    found = {}
    for _ in range(2):
        arrival = doorman.next(SECONDS)
        assert isinstance(arrival, Arrival)
        hello = msgspec.msgpack.decode(arrival.frame, type=Hello)
        arrival.connection.settimeout(None)
        found[hello.config is not None] = arrival.connection, hello.config
    doorman.close()
    line = FrameSocket(found[True][0])
    line.send(encode(found[True][1]))
    [frame] = line.receive(wait=True)
    assert msgspec.msgpack.decode(frame, type=Ready).num_gpu_blocks == 64
    found[False][0].close()
    with pytest.raises(ClosedError):
        line.receive(wait=True)
    lends.join(SECONDS)
    assert "was stopped: its front end has ended" in reports[0].error
    line.close()
    other = msgspec.structs.replace(join, model="x")
    report = lend_core("m", Asked(other, doorman.address, KEY))
    assert report.wrong
    assert "m has another model" in report.error
