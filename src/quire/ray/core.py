"""The process that stands for an engine core on a machine that Ray chooses:
`python -m quire.ray.core DIRECTORY PARENT SOCKET [stand-by]`.

It has Ray start one (`far_core`), connects to it, and passes frames on (`frontend.far.lines`).
"""

from __future__ import annotations

import os
import socket
import sys
from functools import partial

import msgspec

from quire.core.config import EngineConfig
from quire.executor.joining import own_join
from quire.executor.placement import Report
from quire.frontend.far.lent import Hello, hello_of
from quire.frontend.far.lines import Clock, Lines, stand
from quire.parallel.handshake import Doorman
from quire.ray.cluster import POLL, RayCluster, Waiting
from quire.ray.far_core import Asked, lend_core
from quire.system.frames import FrameSocket

_LAST_WORDS = 2.0
"""Seconds for Ray to report why a core has ended."""


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
        """See `Far`."""
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
            if arrival is not None:
                hello = hello_of(arrival.frame)
                arrival.connection.settimeout(None)
                found[hello.config is not None] = arrival.connection, hello
            elif (report := self.report(0.0)) is not None:
                raise report.exception
        self._doorman.close()
        connection, hello = found[True]
        lines = Lines(near, connection, found[False][0], Clock(hello.clock))
        lines.configure(hello.config)
        return lines

    def last_words(self) -> str:
        """Return why the core has ended, if its machine says so soon."""
        report = self.report(_LAST_WORDS)
        return report.error if report else ""

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


def main(argv: list[str]) -> int:
    """Pass frames on until the core or the front end ends; return the exit status."""
    return stand(argv, lambda: partial(Placed, RayCluster("--data-parallel-backend ray")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
