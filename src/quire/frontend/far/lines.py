"""The frames between a front end and an engine core on another machine.

They pass through a process that stands for the core. To the front end it is the core
(`engine.process`). Each machine has a monotonic clock of its own, so it converts times.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from quire.core import messages
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError
from quire.core.log import setup_logging
from quire.engine.process import LINGER_SECONDS, die_with
from quire.frontend.client.core_client import STACKS_SIGNAL
from quire.parallel.heartbeat import wait_for_loss
from quire.system.frames import ClosedError, Frame, FrameSocket

DRIFT = 1e-4
"""Most that two clocks may differ in speed; computers' clocks differ by less."""


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

    def take(self, message: messages.CoreMessage) -> None:
        """Replace the times in a message from there by this machine's."""
        match message:
            case messages.Ready():
                message.began += self.behind
            case messages.StepOutputs():
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
        self._inputs = messages.FrameDecoder[messages.CoreInput](messages.CoreInput)
        self._outputs = messages.FrameDecoder[messages.CoreMessage](messages.CoreMessage)
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
        if isinstance(message, messages.AddRequest):
            message.arrival_time -= self._clock.behind
            frame = self._encode(message)
        self._ends |= isinstance(message, messages.Shutdown)
        if message is not None:
            self._far.send(frame)

    def _to_front_end(self, frame: Frame) -> None:
        message = self._outputs.decode(frame)
        if message is not None:
            self._clock.take(message)
            self._near.send(self._encode(message))


class Far(Protocol):
    """A core on another machine, before it is connected.

    Attributes:
        name: of its machine.
    """

    name: str

    def connect(self, near: FrameSocket) -> Lines:
        """Wait for the core's connections; return them, after the core got its configuration.

        Raises:
            ClosedError: the front end has ended.
            QuireError: the core cannot start, or nothing came in time.
        """

    def last_words(self) -> str:
        """Return why the core has ended, if its machine says so."""


def stand(ends: list[str], prepare: Callable[[], Callable[[EngineConfig], Far]]) -> int:
    """Stand for a core until it or the front end ends; return the process's exit status.

    Args:
        ends: DIRECTORY PARENT SOCKET [stand-by], as for the core's own process.
        prepare: returns what finds a core for a configuration.
    """
    directory, parent, end, stand_by = Path(ends[0]), int(ends[1]), int(ends[2]), bool(ends[3:])
    die_with(parent, directory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    setup_logging()
    near = FrameSocket(socket.socket(fileno=end))
    os.set_inheritable(end, False)

    def send(message: Any) -> None:
        near.send(msgspec.msgpack.encode(message))

    try:
        find = prepare()
        if stand_by:
            send(messages.Standing())
        [config] = near.receive(wait=True)
        far = find(msgspec.msgpack.decode(config, type=EngineConfig))
        lines = far.connect(near)
        signal.signal(STACKS_SIGNAL, lines.end_stuck)
        if (why := lines.run()) is not None:
            raise EngineDeadError(far.last_words() or f"The core on {far.name} {why}.")
    except ClosedError:  # the front end has ended
        return 1
    except QuireError as error:
        send(messages.CoreFailed(error.code, str(error)))
        return 1
    finally:
        near.close(LINGER_SECONDS)
    return 0
