"""Operations against the machine's limits: the numbers of the roofline plot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from quire.core.op_profile import OpProfile, OpTime
from quire.explain.evidence import Evidence
from quire.explain.report import Bound, LimitsUsed, OpLine

STALE = 1.05
"""A measured limit that operations exceed by more than that factor is stale."""
WEIGHTY = 0.02
"""What takes a smaller share of the time may be in a cache, and is no measure of memory."""
OVERHEAD_SHARE = 0.2
"""An operation that reaches less of either limit is bound by neither."""
_LAYER = re.compile(r"\blayers?\.\d+\.")


@dataclass(slots=True)
class _Sum:
    """All calls of one operation in one place of every layer."""

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
    """A line for each operation and place, layers taken together; the costliest first."""
    if profile is None or limits is None:
        return []
    sums = _sums(profile.ops)
    total = sum(s.seconds for s in sums.values())
    lines = [_line(*key, s, total, limits) for key, s in sums.items() if s.seconds > 0]
    return sorted(lines, key=lambda line: -line.share)


def limits_used(evidence: Evidence) -> LimitsUsed | None:
    """The machine's limits with the engine's threads; where they were not measured, the best that
    the profile saw; None without either."""
    threads = evidence.config.num_threads
    if (limits := evidence.limits) is not None:
        flops = {dtype: limits.flops_of(dtype, threads) for dtype in limits.flops}
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
    """The operations that take long enough to tell something about limits."""
    sums = list(_sums(profile.ops).values()) if profile else []
    total = sum(s.seconds for s in sums)
    return [s for s in sums if s.seconds > WEIGHTY * total]


def _reached(s: _Sum, limits: LimitsUsed) -> tuple[float, float]:
    """Return the shares of memory's and of arithmetic's limit that an operation reached."""
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
