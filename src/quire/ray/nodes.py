"""The process that has Ray start the machines of an engine: `python -m quire.ray.nodes PARENT FD`.

It reads what is wanted (`executor.placement.Wanted`) from its standard input, and writes what
happens (`Report`) to FD. It ends with its input, with its parent, and when a machine ends. Ray then
stops the other machines. Steps do not pass through Ray.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec

from quire.core.errors import QuireError
from quire.core.log import setup_logging
from quire.executor.placement import Report, Wanted
from quire.ray.cluster import POLL, RayCluster, Waiting, readable
from quire.system.parent import end_with

_NODE_ID = "ray.io/node-id"


class Node:
    """One machine of an engine, in a Ray actor."""

    def lend(self, node: int, wanted: Wanted) -> Report:
        """Lend this machine's workers until the core on node 0 ends; return why it ended."""
        from quire.executor.node import Machine
        from quire.resolve.arguments import EngineArgs
        from quire.resolve.engine import resolve
        from quire.system.hardware import detect

        setup_logging()
        try:
            flags = msgspec.json.decode(wanted.flags)
            where = {"master_addr": wanted.master_addr, "master_port": wanted.master_port}
            config = resolve(EngineArgs(**flags | where), detect()).config
            Machine(config, node, wanted.key.encode()).lend()
        except QuireError as error:
            return Report.of(error, f"Node {node} cannot start: ")
        return Report(error=f"Node {node} has ended.")


class Nodes:
    """The other machines: Ray chooses and starts them.

    Raises: see `RayCluster`.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._cluster = RayCluster("--distributed-executor-backend ray")
        self._group: Any = None
        host = wanted.master_addr or self._cluster.address
        self.wanted = msgspec.structs.replace(wanted, master_addr=host)

    def place(self, stop: int) -> bool:
        """Wait for machines with enough CPUs; return False if `stop` became readable before.

        Raises:
            EngineDeadError: Ray has none after `JOIN_SECONDS`.
        """
        from ray.util.placement_group import placement_group

        wanted, here = self.wanted, self._cluster.here
        others = [{_NODE_ID: f"!{here}"} for _ in range(wanted.nodes - 1)]
        self._group = placement_group(
            [{"CPU": wanted.cpus} for _ in range(wanted.nodes)],
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: here}, *others],
        )
        needed = f"{wanted.nodes} machines with {wanted.cpus} free CPUs each are needed, and this "
        needed += "machine must be one of them. Ray has"
        waiting = Waiting("machines", lambda: f"{needed} {self._cluster.machines()}.")
        while not self._group.wait(POLL):
            if readable(stop):
                return False
            waiting.look()
        return True

    def run(self, stop: int) -> Report | None:
        """Start the machines; return why the first of them ended, or None if `stop` is readable."""
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._cluster.ray
        actor = ray.remote(Node)
        running = {}
        for node in range(1, self.wanted.nodes):
            place = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=node
            )
            options = {"num_cpus": self.wanted.cpus, "scheduling_strategy": place}
            machine = actor.options(**options).remote()
            running[machine.lend.remote(node, self.wanted)] = node, machine
        while not readable(stop):
            ended, _ = ray.wait([*running], timeout=POLL)
            for one in ended:
                try:
                    report: Report = ray.get(one)
                except RayError as error:
                    report = Report(error=f"Node {running[one][0]} was lost: {error}")
                return report
        for _, machine in running.values():
            ray.kill(machine)
        return None

    def close(self) -> None:
        """Stop the machines that still run."""
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
        self._cluster.close()


def main(argv: list[str]) -> int:
    """Have Ray start the machines; return when they or the input end."""
    parent, reports = map(int, argv)
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    setup_logging()

    def say(report: Report) -> None:
        os.write(reports, msgspec.json.encode(report) + b"\n")

    stop = sys.stdin.fileno()
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=Wanted)
    try:
        nodes = Nodes(wanted)
        say(Report(address=nodes.wanted.master_addr))
        if nodes.place(stop) and (report := nodes.run(stop)) is not None:
            say(report)
        nodes.close()
    except QuireError as error:
        say(Report.of(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
