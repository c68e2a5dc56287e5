"""Where a step's time goes, by module and by op.

    with layerwise_profile(llm) as profile:
        llm.generate(prompts)
    profile.results.print_model_table()

Times are wall times and add up: time outside of ops is "python" in the model and "other" in the
step.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec

from quire.core.op_profile import OpProfile, OpTime, expert_balances
from quire.system.records import dataclass

MAX_STEPS = 2**31 - 1
FROM_CACHE = 1.1
"""A share of the machine's limits above which the data must come from a cache."""


class Engine(Protocol):
    """The parts of an `LLM` that this module uses."""

    def call(self, method: str, *args: Any) -> Any: ...


class PeakRates(Protocol):
    """The machine's limits."""

    def bandwidth_of(self, threads: int) -> float:
        """Return bytes per second."""

    def flops_of(self, dtype: str, threads: int) -> float:
        """Return operations per second in products of this type."""


@dataclass(slots=True)
class Node:
    """A part of the step, and its parts.

    Attributes:
        calls: calls of the op; 0 for a part that is not an op.
        least_seconds: time for its bytes and FLOPs at the machine's limits; None if unknown.
    """

    name: str
    seconds: float = 0.0
    calls: int = 0
    nbytes: int = 0
    flops: int = 0
    least_seconds: float | None = None
    children: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        """Return the part of this name, creating it if needed."""
        return self.children.setdefault(name, Node(name))

    def add(self, op: OpTime, least_seconds: float | None) -> None:
        self.seconds += op.seconds
        self.nbytes += op.nbytes
        self.flops += op.flops
        if least_seconds is not None:
            self.least_seconds = (self.least_seconds or 0.0) + least_seconds

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield this node and all its parts, each with its path."""
        here = (*path, self.name)
        yield here, self
        for child in self.children.values():
            yield from child.walk(here)

    @property
    def of_limit(self) -> float | None:
        """Return the share of the machine's limit; None if it is unknown or nothing is moved."""
        if self.least_seconds is None or not self.seconds:
            return None
        return self.least_seconds / self.seconds


class LayerwiseResults:
    """An `OpProfile` as a tree of modules and as a list of ops.

    Args:
        rates: the machine's limits; without them there are no shares of a limit.
        threads: number of threads that compute.

    Attributes:
        model: the step as a tree. A node's time is the sum of its parts', up to rounding.
        summary: ops over all modules, the longest first.
        experts: of each layer that has some: how evenly its router chose.
    """

    def __init__(
        self, profile: OpProfile, rates: PeakRates | None = None, threads: int = 1
    ) -> None:
        self.profile = profile
        self._rates, self._threads = rates, threads
        self.model = self._tree()
        self.summary = self._operations()
        self.experts = expert_balances(profile.ops)

    def print_model_table(self, out: TextIO | None = None) -> None:
        """Print the tree of modules and ops; a module with one op has one line. "cache" means
        faster than memory allows."""
        self._print(self._lines(self.model), out or sys.stdout)

    def _lines(self, node: Node, depth: int = 0) -> Iterator[tuple[str, Node]]:
        only = next(iter(node.children.values())) if len(node.children) == 1 else None
        if only is not None and only.calls:
            yield "  " * depth + f"{node.name} ({only.name})", only
            return
        yield "  " * depth + node.name, node
        for child in node.children.values():
            yield from self._lines(child, depth + 1)

    def print_summary_table(self, out: TextIO | None = None) -> None:
        """Print ops over all modules."""
        self._print([(node.name, node) for node in self.summary], out or sys.stdout)

    def print_expert_table(self, out: TextIO | None = None) -> None:
        """Print how evenly each layer's router chose; nothing without experts."""
        if not self.experts:
            return
        lines = [_EXPERT_HEADINGS]
        for layer in self.experts:
            used = f"{layer.used:.1f} of {layer.experts}"
            lines.append((layer.module, used, f"{layer.peak:.2f}", str(layer.busiest)))
        _print_grid(lines, out or sys.stdout)

    def print_drafts(self, out: TextIO | None = None) -> None:
        """Print how many tokens were drafted and accepted; nothing without drafts."""
        drafted, accepted = self.profile.num_draft_tokens, self.profile.num_accepted_tokens
        if drafted:
            print(f"drafts: {drafted:,} tokens, {accepted / drafted:.1%} accepted", file=out)

    def export_model_stats_table_csv(self, path: str | Path) -> None:
        """Write columns name, cpu_time_us, cuda_time_us, pct_time and trace (the path)."""
        rows = [[*self._entry(node).values(), "/".join(names)] for names, node in self.model.walk()]
        _write_csv(path, [*_COLUMNS, "trace"], rows)

    def export_summary_stats_table_csv(self, path: str | Path) -> None:
        """Write columns name, cpu_time_us, cuda_time_us, pct_time and invocations."""
        rows = [[*self._entry(node).values(), node.calls] for node in self.summary]
        _write_csv(path, [*_COLUMNS, "invocations"], rows)

    def convert_stats_to_dict(self) -> dict[str, Any]:
        """Return `context`, `summary_stats` (a list), `model_stats` (`entry` and `children`) and
        `experts` (a list of layers)."""
        context = msgspec.to_builtins(self.profile)
        del context["ops"], context["draft_ops"]
        return {
            "context": context,
            "summary_stats": [self._details(node) for node in self.summary],
            "model_stats": self._nested(self.model),
            "experts": msgspec.to_builtins(self.experts),
        }

    def _tree(self) -> Node:
        seen = self.profile
        step = Node("step", seen.wall_seconds)
        step.child("prepare").seconds = seen.prepare_seconds
        drafting = max(seen.draft_seconds, sum(op.seconds for op in seen.draft_ops))
        if drafting:
            self._add_modules(step.child("draft"), seen.draft_ops, drafting)
        # A draft head computes a long prompt within the model's time.
        verifying = seen.model_seconds - (drafting - seen.draft_seconds)
        self._add_modules(step.child("model"), seen.ops, verifying)
        step.child("sample").seconds = seen.sample_seconds
        named = sum(part.seconds for part in step.children.values())
        step.child("other").seconds = max(0.0, seen.wall_seconds - named)
        return step

    def _add_modules(self, model: Node, ops: Iterable[OpTime], seconds: float) -> None:
        """Add the modules and ops of a model that took so long, and the rest of it as "python"."""
        for op in ops:
            least = self._least_seconds(op)
            node = model
            model.add(op, None)  # it contains more than ops
            for name in op.module.split("."):
                node = node.child(name)
                node.add(op, least)
            node = node.child(op.name)
            node.add(op, least)
            node.calls += op.calls
        model.child("python").seconds = max(0.0, seconds - model.seconds)
        model.seconds = max(seconds, model.seconds)

    def _operations(self) -> list[Node]:
        found: dict[str, Node] = {}
        for op in (*self.profile.ops, *self.profile.draft_ops):
            name = f"{op.name} ({op.dtype}, {op.isa})"
            node = found.setdefault(name, Node(name))
            node.add(op, self._least_seconds(op))
            node.calls += op.calls
        return sorted(found.values(), key=lambda node: -node.seconds)

    def _least_seconds(self, op: OpTime) -> float | None:
        if self._rates is None:
            return None
        return max(
            op.nbytes / self._rates.bandwidth_of(self._threads),
            op.flops / self._rates.flops_of(op.dtype, self._threads),
        )

    def _share(self, node: Node) -> float:
        return node.seconds / self.model.seconds if self.model.seconds else 0.0

    def _entry(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.name,
            "cpu_time_us": round(node.seconds * 1e6, 3),
            "cuda_time_us": 0.0,  # vLLM's column; ops are timed on the host
            "pct_time": round(100 * self._share(node), 3),
        }

    def _details(self, node: Node) -> dict[str, Any]:
        return self._entry(node) | {
            "invocations": node.calls,
            "bytes": node.nbytes,
            "flops": node.flops,
            "gb_s": _rate(node.nbytes, node.seconds),
            "gflop_s": _rate(node.flops, node.seconds),
            "of_limit": node.of_limit,
        }

    def _nested(self, node: Node) -> dict[str, Any]:
        children = [self._nested(child) for child in node.children.values()]
        return {"entry": self._details(node), "children": children}

    def _print(self, rows: Iterable[tuple[str, Node]], out: TextIO) -> None:
        lines: list[tuple[str, ...]] = [_HEADINGS]
        for name, node in rows:
            moves = node.calls > 0 or node.nbytes > 0
            lines.append(
                (
                    name,
                    f"{node.seconds * 1e6:,.0f}",
                    f"{self._share(node):.1%}",
                    f"{node.calls:,}" if node.calls else "",
                    f"{node.nbytes / 1e6:,.1f}" if moves else "",
                    f"{_rate(node.nbytes, node.seconds):,.1f}" if moves else "",
                    f"{_rate(node.flops, node.seconds):,.1f}" if moves else "",
                    _limit(node.of_limit),
                )
            )
        _print_grid(lines, out)


@dataclass(slots=True)
class LayerwiseProfile:
    """`results` is set when the profiled block has ended."""

    results: LayerwiseResults = field(
        default_factory=lambda: LayerwiseResults(OpProfile(0, 0.0, 0.0, 0, 0, 0, []))
    )


@contextmanager
def layerwise_profile(
    llm: Engine, rates: PeakRates | None = None, threads: int = 1
) -> Iterator[LayerwiseProfile]:
    """Profile every step of the engine inside the block."""
    profile = LayerwiseProfile()
    llm.call("start_op_profile", MAX_STEPS)
    try:
        yield profile
    finally:
        counted = msgspec.convert(llm.call("stop_op_profile"), OpProfile)
        profile.results = LayerwiseResults(counted, rates, threads)


_COLUMNS = ["name", "cpu_time_us", "cuda_time_us", "pct_time"]
_HEADINGS = ("name", "cpu µs", "time", "calls", "MB", "GB/s", "GFLOP/s", "of limit")


_EXPERT_HEADINGS = ("layer", "experts per step", "busiest / mean", "busiest")


def _print_grid(lines: Sequence[tuple[str, ...]], out: TextIO) -> None:
    """Print the headings and rows; columns without entries are left out."""
    shown = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in shown}
    for line in lines:
        cells = [line[i].rjust(widths[i]) if i else line[i].ljust(widths[i]) for i in shown]
        print("  ".join(cells).rstrip(), file=out)


def _limit(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.0%}" if share <= FROM_CACHE else "cache"


def _rate(amount: int, seconds: float) -> float:
    """Return 10⁹ per second."""
    return amount / seconds / 1e9 if seconds else 0.0


def _write_csv(path: str | Path, columns: list[str], rows: Iterable[list[Any]]) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
