"""Captured steps: a device records its work once, and the host queues it again in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.ops.array import Array
from quire.ops.metadata import AttentionMetadata, KVCache


class Graph(Protocol):
    """Work that a device has recorded."""

    def replay(self) -> None:
        """Queue all of it again; it reads and writes the same memory."""


class FixedTables(Protocol):
    """What kernels read of a captured step's metadata."""

    def update(self, meta: AttentionMetadata) -> None:
        """Send the tables of a step with as many sequences of one row each.

        The first call, before a capture, gives the tables the addresses that do not change.
        """


class Capture(Protocol):
    """A provider's part in capturing: its kernels read metadata from tables alone."""

    def reads(self, caches: Sequence[KVCache]) -> bool:
        """Return whether its kernels compute all of a step with these caches."""

    def fix(self, meta: AttentionMetadata, longest: int) -> FixedTables:
        """Return tables for `meta`, to which its kernels add what they need at their first call.

        Args:
            longest: most tokens that a sequence will have.
        """

    def record(
        self, work: Callable[[], Sequence[Array]], reserve: int
    ) -> tuple[Graph, Sequence[Array]]:
        """Return the work's kernels as a graph, and its results, which the next replay of any graph
        overwrites. The work may not wait for the device.

        Args:
            reserve: bytes of the results of the largest graph to come.
        """
