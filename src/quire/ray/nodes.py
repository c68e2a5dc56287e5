"""The process that has Ray start the machines of an engine: `python -m quire.ray.nodes PARENT FD`.

It reads what is wanted (`executor.placement.Wanted`) from its standard input, and writes what
happens (`Report`) to FD. It ends with its input, with its parent, and when a machine ends. Ray then
stops the other machines. Steps do not pass through Ray.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from typing import Any

import msgspec

from quire.core.errors import ConfigError, EngineDeadError, QuireError
from quire.core.extras import require
from quire.core.log import setup_logging
from quire.executor.cluster import JOIN_SECONDS, REMIND_SECONDS
from quire.executor.placement import Report, Wanted
from quire.system.parent import end_with

logger = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds until the first message about machines that cannot be had."""
_POLL = 0.2
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
            wrong = isinstance(error, ConfigError)
            return Report(
                error=f"Node {node} cannot start: {error.what}", fix=error.fix, wrong=wrong
            )
        return Report(error=f"Node {node} has ended.")


class Nodes:
    """The other machines: Ray chooses and starts them.

    Raises:
        ConfigError: Ray is not installed here.
        EngineDeadError: there is no Ray cluster.
    """

    def __init__(self, wanted: Wanted) -> None:
        require("ray", "--distributed-executor-backend ray")
        import ray

        self._ray = ray
        self._group: Any = None
        try:
            ray.init(address="auto", logging_level=logging.WARNING)
        except ConnectionError as error:
            raise EngineDeadError(
                f"No Ray cluster answers: {error}",
                fix="Run `ray start --head` on one machine and `ray start --address HOST:6379` on "
                "the others, or set RAY_ADDRESS.",
            ) from None
        host = wanted.master_addr or ray.util.get_node_ip_address()
        self.wanted = msgspec.structs.replace(wanted, master_addr=host)
        self._here = ray.get_runtime_context().get_node_id()

    def place(self, stop: int) -> bool:
        """Wait for machines with enough CPUs; return False if `stop` became readable before.

        Raises:
            EngineDeadError: Ray has none after `JOIN_SECONDS`.
        """
        from ray.util.placement_group import placement_group

        wanted = self.wanted
        others = [{_NODE_ID: f"!{self._here}"} for _ in range(wanted.nodes - 1)]
        self._group = placement_group(
            [{"CPU": wanted.cpus} for _ in range(wanted.nodes)],
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: self._here}, *others],
        )
        began = time.monotonic()
        remind = began + _PATIENCE
        while not self._group.wait(_POLL):
            if _readable(stop):
                return False
            if time.monotonic() > remind:
                logger.warning("waiting for machines: %s", self._shortage())
                remind += REMIND_SECONDS
            if time.monotonic() > began + JOIN_SECONDS:
                raise EngineDeadError(
                    f"Ray found no machines within {JOIN_SECONDS:.0f} s: {self._shortage()}",
                    fix="Add machines, stop other work on them, or set a lower --num-threads.",
                )
        return True

    def run(self, stop: int) -> Report | None:
        """Start the machines; return why the first of them ended, or None if `stop` is readable."""
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(Node)
        running = {}
        for node in range(1, self.wanted.nodes):
            place = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=node
            )
            options = {"num_cpus": self.wanted.cpus, "scheduling_strategy": place}
            machine = actor.options(**options).remote()
            running[machine.lend.remote(node, self.wanted)] = node, machine
        while not _readable(stop):
            ended, _ = self._ray.wait([*running], timeout=_POLL)
            for one in ended:
                try:
                    report: Report = self._ray.get(one)
                except RayError as error:
                    report = Report(error=f"Node {running[one][0]} was lost: {error}")
                return report
        for _, machine in running.values():
            self._ray.kill(machine)
        return None

    def close(self) -> None:
        """Stop the machines that still run."""
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
        self._ray.shutdown()

    def _shortage(self) -> str:
        """Return what was asked of Ray, and what it has."""
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        has = []
        for node in self._ray.nodes():
            if node["Alive"]:
                cpus = free.get(node["NodeID"], {}).get("CPU", 0.0)
                here = ", this machine" if node["NodeID"] == self._here else ""
                total = node["Resources"].get("CPU", 0.0)
                name = node["NodeManagerAddress"]
                has.append(f"{name} ({cpus:g} of {total:g} CPUs free{here})")
        return (
            f"{self.wanted.nodes} machines with {self.wanted.cpus} free CPUs each are needed, and "
            f"this machine must be one of them. Ray has {', '.join(has)}."
        )


def _readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


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
        say(Report(error=error.what, fix=error.fix, wrong=isinstance(error, ConfigError)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
