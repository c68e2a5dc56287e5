"""The Ray cluster that this process uses: who is in it, and what it has free."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable

from quire.core.errors import EngineDeadError
from quire.core.extras import require
from quire.executor.cluster import JOIN_SECONDS
from quire.parallel.handshake import Reminder

logger = logging.getLogger(__name__)

POLL = 0.2
"""Seconds between two looks at what Ray has started."""
_PATIENCE = 2.0
"""Seconds until the first message about machines that cannot be had."""


class RayCluster:
    """A connection to Ray. What it has started ends with `close`, or with this process.

    Args:
        user: the flag that needs Ray.

    Attributes:
        here: Ray's name of this machine; `address` is the one by which Ray knows it.

    Raises:
        ConfigError: Ray is not installed here.
        EngineDeadError: there is no Ray cluster.
    """

    def __init__(self, user: str) -> None:
        require("ray", user)
        import ray

        self.ray = ray
        try:
            ray.init(address="auto", logging_level=logging.WARNING)
        except ConnectionError as error:
            raise EngineDeadError(
                f"No Ray cluster answers: {error}",
                fix="Run `ray start --head` on one machine and `ray start --address HOST:6379` on "
                "the others, or set RAY_ADDRESS.",
            ) from None
        self.here: str = ray.get_runtime_context().get_node_id()
        self.address: str = ray.util.get_node_ip_address()

    def close(self) -> None:
        """Stop what this process has started."""
        self.ray.shutdown()

    def machines(self) -> str:
        """Return the addresses of Ray's machines, and the CPUs that each has free."""
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        has = []
        for node in self.ray.nodes():
            if node["Alive"]:
                cpus = free.get(node["NodeID"], {}).get("CPU", 0.0)
                here = ", this machine" if node["NodeID"] == self.here else ""
                total = node["Resources"].get("CPU", 0.0)
                name = node["NodeManagerAddress"]
                has.append(f"{name} ({cpus:g} of {total:g} CPUs free{here})")
        return ", ".join(has)


class Waiting:
    """A wait that says now and then what is missing, and has an end.

    Args:
        what: name of what is missing.
        why: returns more about it.
    """

    def __init__(self, what: str, why: Callable[[], str]) -> None:
        self._what, self._why = what, why
        self._end = time.monotonic() + JOIN_SECONDS
        self._reminder = Reminder(_PATIENCE)

    def look(self) -> None:
        """Call this often.

        Raises:
            EngineDeadError: it is still missing after `JOIN_SECONDS`.
        """
        if self._reminder.is_due():
            logger.warning("waiting for %s: %s", self._what, self._why())
        if time.monotonic() > self._end:
            raise EngineDeadError(
                f"Ray found no {self._what} within {JOIN_SECONDS:.0f} s: {self._why()}",
                fix="Add machines, stop other work on them, or set a lower --num-threads.",
            )


def readable(descriptor: int) -> bool:
    """Return whether a descriptor has something to read, or has ended."""
    return bool(select.select([descriptor], [], [], 0)[0])
