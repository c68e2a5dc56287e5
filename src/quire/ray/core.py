"""The process that stands for an engine core on another machine:
`python -m quire.ray.core DIRECTORY PARENT SOCKET [stand-by]`.

To the front end it is the core (`engine.process`). It has Ray start one (`far_core`), connects to
it, and passes frames on. Each machine has a monotonic clock of its own, so it converts times.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, EngineDeadError, QuireError
from quire.core.log import setup_logging
from quire.core.messages import (
    AddRequest,
    CoreFailed,
    CoreInput,
    CoreMessage,
    FrameDecoder,
    Ready,
    Shutdown,
    Standing,
    StepOutputs,
)
from quire.engine.process import LINGER_SECONDS, die_with
from quire.executor.joining import own_join
from quire.executor.placement import Report
from quire.frontend.client.core_client import STACKS_SIGNAL
from quire.parallel.handshake import Arrival, Doorman
from quire.parallel.heartbeat import wait_for_loss
from quire.ray.cluster import POLL, RayCluster, Waiting
from quire.ray.far_core import Asked, Hello, hello_of, lend_core
from quire.system.frames import ClosedError, Frame, FrameSocket

DRIFT = 1e-4
"""Most that two clocks may differ in speed; computers' clocks differ by less."""
_LAST_WORDS = 2.0
"""Seconds for Ray to report why a core has ended."""


class Clock:
    """Another machine's monotonic clock.

    Attributes:
        behind: seconds by which it is behind this machine's, plus a message's shortest way here.
    """

    def __init__(self, theirs: float) -> None:
        self._heard = time.monotonic()
        self.behind = self._heard - theirs

    def hear(self, theirs: float) -> None:
        """Take the time at which a message was sent that has just arrived."""
        now = time.monotonic()
        self.behind = min(now - theirs, self.behind + DRIFT * (now - self._heard))
        self._heard = now

    def take(self, message: CoreMessage) -> None:
        """Replace the times in a message from there by this machine's."""
        match message:
            case Ready():
                message.began += self.behind
            case StepOutputs():
                self.hear(message.timestamp)
                message.timestamp += self.behind
                for event in message.events:
                    event.time += self.behind
                    event.end += self.behind if event.end else 0.0
                for output in message.outputs:
                    output.scheduled_time += self.behind if output.scheduled_time else 0.0


class Lines:
    """The frames between a front end and a core on another machine.

    Args:
        near: to the front end.
        line: to the core.
        beats: connection on which both machines send heartbeats.
    """

    def __init__(
        self, near: FrameSocket, line: socket.socket, beats: socket.socket, clock: Clock
    ) -> None:
        self._near, self._line, self._beats, self._clock = near, line, beats, clock
        self._far = FrameSocket(line)
        self._inputs = FrameDecoder[CoreInput](CoreInput)
        self._outputs = FrameDecoder[CoreMessage](CoreMessage)
        self._encode = msgspec.msgpack.Encoder().encode
        self._ends = False
        self._lost = ""

    def configure(self, config: EngineConfig | None) -> None:
        """Send the core its configuration, which is the first frame."""
        self._far.send(self._encode(config))

    def run(self) -> str | None:
        """Pass frames on; return why the core is lost, or None after a `Shutdown`.

        Raises:
            ClosedError: the front end has ended.
        """
        watch = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        watch.start()
        try:
            return self._pass_on()
        finally:
            with suppress(OSError):  # the other end is gone
                self._beats.shutdown(socket.SHUT_RDWR)
            watch.join()
            self._beats.close()
            self._far.close()

    def _pass_on(self) -> str | None:
        poll = select.poll()
        for end in (self._near, self._far):
            poll.register(end, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if self._near.fileno() in ready:
                for frame in self._near.receive(wait=False):
                    self._to_core(frame)
            if self._far.fileno() in ready:
                try:
                    frames = self._far.receive(wait=False)
                except ClosedError:
                    return None if self._ends else self._lost or "has ended"
                for frame in frames:
                    self._to_front_end(frame)

    def end_stuck(self, *_: object) -> None:
        """Have the other machine log the stacks of the core and end it; the front end then kills
        this process."""
        self._beats.shutdown(socket.SHUT_RDWR)
        signal.pause()

    def _watch(self) -> None:
        self._lost = wait_for_loss({self._beats: ""}).how
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def _to_core(self, frame: Frame) -> None:
        message = self._inputs.decode(frame)
        if isinstance(message, AddRequest):
            message.arrival_time -= self._clock.behind
            frame = self._encode(message)
        self._ends |= isinstance(message, Shutdown)
        if message is not None:
            self._far.send(frame)

    def _to_front_end(self, frame: Frame) -> None:
        message = self._outputs.decode(frame)
        if message is not None:
            self._clock.take(message)
            self._near.send(self._encode(message))


class Core:
    """An engine core, in a Ray actor."""

    def where(self) -> str:
        import ray

        address: str = ray.util.get_node_ip_address()
        return address

    def lend(self, asked: Asked) -> Report:
        """See `lend_core`."""
        return lend_core(self.where(), asked)


class Placed:
    """A core that Ray starts on some machine.

    Attributes:
        name: of its machine, once that is known.

    Args:
        config: of the front end.
    """

    def __init__(self, cluster: RayCluster, config: EngineConfig) -> None:
        self._cluster = cluster
        key = os.urandom(32)
        self._doorman = Doorman(cluster.address, 0, key)
        self._cpus: int = msgspec.json.decode(config.cluster.flags)["num_threads"]
        kind = cluster.ray.remote(Core).options(num_cpus=self._cpus, scheduling_strategy="SPREAD")
        self._actor = kind.remote()
        self._where = self._actor.where.remote()
        asked = Asked(own_join(config, 0), self._doorman.address, key)
        self._report = self._actor.lend.remote(asked)
        self.name = "a machine of Ray"

    def connect(self, near: FrameSocket) -> Lines:
        """Wait for the core's connections; return them, after the core got its configuration.

        Raises:
            ClosedError: the front end has ended.
            QuireError: the core cannot start, or nothing came in time.
        """
        ray = self._cluster.ray
        needed = f"one machine with {self._cpus} free CPUs is needed for a replica. Ray has"
        waiting = Waiting("machines", lambda: f"{needed} {self._cluster.machines()}.")
        while not ray.wait([self._where], timeout=POLL)[0]:
            near.receive(wait=False)  # raises if there is no front end any more
            waiting.look()
        self.name = ray.get(self._where)
        waiting = Waiting(f"a core on {self.name}", lambda: "it has not connected yet")
        found: dict[bool, tuple[socket.socket, Hello]] = {}
        while len(found) < 2:
            near.receive(wait=False)
            waiting.look()
            arrival = self._doorman.next(POLL)
            if isinstance(arrival, Arrival):
                hello = hello_of(arrival.frame)
                arrival.connection.settimeout(None)
                found[hello.config is not None] = arrival.connection, hello
            elif (report := self.report(0.0)) is not None:
                raise _error_of(report)
        self._doorman.close()
        connection, hello = found[True]
        lines = Lines(near, connection, found[False][0], Clock(hello.clock))
        lines.configure(hello.config)
        return lines

    def report(self, seconds: float) -> Report | None:
        """Return why the core has ended, if it has, or does in this time."""
        from ray.exceptions import RayError

        ended, _ = self._cluster.ray.wait([self._report], timeout=seconds)
        if not ended:
            return None
        try:
            report: Report = self._cluster.ray.get(self._report)
        except RayError as error:
            return Report(error=f"{self.name} was lost: {error}")
        return report


def _error_of(report: Report) -> QuireError:
    kind = ConfigError if report.wrong else EngineDeadError
    return kind(report.error, fix=report.fix)


def main(argv: list[str]) -> int:
    """Pass frames on until the core or the front end ends; return the exit status."""
    directory, parent, end, stand_by = Path(argv[0]), int(argv[1]), int(argv[2]), bool(argv[3:])
    die_with(parent, directory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    setup_logging()
    near = FrameSocket(socket.socket(fileno=end))
    os.set_inheritable(end, False)

    def send(message: Any) -> None:
        near.send(msgspec.msgpack.encode(message))

    try:
        cluster = RayCluster("--data-parallel-backend ray")
        if stand_by:
            send(Standing())
        [config] = near.receive(wait=True)
        placed = Placed(cluster, msgspec.msgpack.decode(config, type=EngineConfig))
        lines = placed.connect(near)
        signal.signal(STACKS_SIGNAL, lines.end_stuck)
        if (why := lines.run()) is not None:
            report = placed.report(_LAST_WORDS)
            raise EngineDeadError(report.error if report else f"The core on {placed.name} {why}.")
    except ClosedError:  # the front end has ended
        return 1
    except QuireError as error:
        send(CoreFailed(error.code, str(error)))
        return 1
    finally:
        near.close(LINGER_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
