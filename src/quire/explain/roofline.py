"""Operations against the machine's limits: the data of the roofline plot."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from quire.core.op_profile import OpProfile, OpTime
from quire.explain.evidence import Evidence
from quire.explain.limits import TYPES
from quire.explain.report import Bound, LimitsUsed, OpLine
from quire.system.records import dataclass

STALE = 1.05
"""A measured limit is stale if operations exceed it by this factor."""
WEIGHTY = 0.02
"""Operations with a smaller share of the time may read from a cache; they say nothing on memory."""
OVERHEAD_SHARE = 0.2
"""An operation that reaches less than this share of both limits is bound by overhead."""
_LAYER = re.compile(r"\blayers?\.\d+\.")


@dataclass(slots=True)
class _Sum:
    """The sum of one operation's calls at one place, over all layers."""

    seconds: float = 0.0
    nbytes: int = 0
    flops: int = 0
    dtype: str = ""

    def add(self, op: OpTime) -> None:
        self.seconds += op.seconds
        self.nbytes += op.nbytes
        self.flops += op.flops
        self.dtype = op.dtype


def op_lines(profile: OpProfile | None, limits: LimitsUsed | None) -> list[OpLine]:
    """Return one line per operation and place, summed over layers; the costliest first."""
    if profile is None or limits is None:
        return []
    sums = _sums(profile.ops)
    total = sum(s.seconds for s in sums.values())
    lines = [_line(*key, s, total, limits) for key, s in sums.items() if s.seconds > 0]
    return sorted(lines, key=lambda line: -line.share)


def limits_used(evidence: Evidence) -> LimitsUsed | None:
    """Return the machine's limits with the engine's threads.

    If they were not measured, the profile's best rates count; None without a profile.
    """
    threads = evidence.config.num_threads
    if (limits := evidence.limits) is not None:
        flops = {dtype: limits.flops_of(dtype, threads) for dtype in TYPES}
        used = LimitsUsed(limits.bandwidth_of(threads), flops, "measured")
        stale = any(max(_reached(s, used)) > STALE for s in _weighty(evidence.ops))
        return msgspec.structs.replace(used, stale=stale)
    weighty = [s for s in _weighty(evidence.ops) if s.nbytes]
    if not weighty:
        return None
    flops = {}
    for s in weighty:
        flops[s.dtype] = max(flops.get(s.dtype, 0.0), s.flops / s.seconds)
    return LimitsUsed(max(s.nbytes / s.seconds for s in weighty), flops, "seen")


def _weighty(profile: OpProfile | None) -> list[_Sum]:
    """Return the operations that are long enough to compare with the limits."""
    sums = list(_sums(profile.ops).values()) if profile else []
    total = sum(s.seconds for s in sums)
    return [s for s in sums if s.seconds > WEIGHTY * total]


def _reached(s: _Sum, limits: LimitsUsed) -> tuple[float, float]:
    """Return the reached shares of the memory limit and of the compute limit."""
    peak = limits.flops_s.get(s.dtype, 0.0)
    arithmetic = s.flops / peak if peak else 0.0
    return s.nbytes / limits.bandwidth_bytes_s / s.seconds, arithmetic / s.seconds


def _sums(ops: Iterable[OpTime]) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for op in ops:
        sums.setdefault((op.name, _LAYER.sub("", op.module)), _Sum()).add(op)
    return sums


def _line(name: str, module: str, s: _Sum, total: float, limits: LimitsUsed) -> OpLine:
    memory, arithmetic = _reached(s, limits)
    of_limit = min(1.0, max(memory, arithmetic))
    bound: Bound = "memory" if memory >= arithmetic else "compute"
    if of_limit < OVERHEAD_SHARE:
        bound = "overhead"
    return OpLine(
        name=name,
        module=module,
        share=s.seconds / total,
        gb_s=s.nbytes / s.seconds / 1e9,
        gflop_s=s.flops / s.seconds / 1e9,
        intensity=s.flops / s.nbytes if s.nbytes else 0.0,
        bound=bound,
        of_limit=of_limit,
        dtype=s.dtype,
    )
