"""What the steps of a window computed, by their sizes, how fast they were, and what others cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from quire.core.config import EngineConfig
from quire.core.cost import RooflineCost, StepParts, cautious_cpu, together
from quire.explain.evidence import Window
from quire.explain.limits import Limits, profile_of
from quire.models.cost import at_rates, roofline
from quire.system.records import dataclass

MIXED = 1.5
"""Tokens of a step, relative to its rows without prompts, from which it contains prompts."""
RATIOS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Times of products relative to those of reading that are tried, both relative to predictions."""
STEP = 2
"""Column of a step's overhead."""
TRUST, VAGUE = 0.03, 0.001
"""Weights of the measured limits and of usual overheads, relative to the window's steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """`count` equal steps with so many prompts; for the other fields see `StepCost.seconds`."""

    count: int
    tokens: float
    seqs: float
    context_tokens: float
    attended: float
    prompts: float = 0.0

    def parts(self, cost: RooflineCost) -> StepParts:
        """Return the predicted times of one of the steps."""
        return cost.parts(
            max(1, round(self.tokens)),
            max(1, round(self.seqs)),
            max(round(self.tokens), round(self.context_tokens)),
            round(self.attended),
        )


class StepMix:
    """The steps of a window, and others of the same load.

    Attributes:
        steps: one per bucket of `Window.step_sizes`.
    """

    def __init__(self, window: Window, block_size: int) -> None:
        self._window = window
        self._block_size = block_size
        self.steps = [self.of_size(count, tokens) for tokens, count in window.step_sizes]

    @property
    def prompt_tokens(self) -> float:
        """Return the number of computed tokens that belong to prompts."""
        w = self._window
        return max(1.0, w.computed_tokens - (w.generation_tokens - w.requests))

    @property
    def own(self) -> float:
        """Return the mean number of computed tokens of a prompt, without cached ones."""
        return self.prompt_tokens / max(1, self._window.requests)

    @property
    def drafts(self) -> float:
        """Return the mean number of a step's drafts, each of which is a row."""
        return self._window.draft_tokens / max(1, self._window.steps)

    @property
    def rows(self) -> float:
        """Return the mean number of a step's rows that belong to no prompt, with drafts."""
        return max(1.0, self._window.running) + self.drafts

    def of_size(self, count: int, tokens: float) -> Step:
        """Return steps of this size; those larger than the batch contain prompts."""
        if tokens <= MIXED * self.rows:
            return self.decoding(count, tokens)
        return self.with_prompts(count, tokens - self.rows, self.rows)

    def decoding(self, count: int, tokens: float) -> Step:
        """Return steps in which each row attends to the mean context; drafts need logits, too."""
        seqs, context = min(max(1.0, self._window.running), tokens), self.context
        sampled = tokens if self.drafts else seqs
        return Step(count, tokens, sampled, seqs * context, tokens * context)

    def without_drafts(self, step: Step) -> Step:
        """Return such steps with no more rows that belong to no prompt than sequences."""
        seqs = max(1.0, self._window.running)
        if not step.prompts:
            return self.decoding(step.count, min(seqs, step.tokens))
        return self.with_prompts(step.count, step.tokens - self.rows, seqs)

    def with_prompts(self, count: int, tokens: float, rows: float) -> Step:
        """Return steps with so many tokens of prompts, and other rows."""
        w, beside = self._window, self.decoding(count, rows) if rows else Step(count, 0, 0, 0, 0)
        cached = w.cached_tokens / max(1, w.requests)
        prompts = max(1.0, tokens / self.own)
        each = tokens / prompts  # of a long prompt, its mean chunk
        context = cached + max(each, self.own)
        return Step(
            count,
            tokens + beside.tokens,
            prompts + beside.seqs,
            prompts * context + beside.context_tokens,
            tokens * (cached + self.own / 2) + beside.attended,
            tokens / self.own,
        )

    @property
    def context(self) -> float:
        """Return the mean number of tokens in the KV cache per running sequence."""
        w = self._window
        held = w.kv_share * w.kv_blocks * self._block_size
        return max(1.0, held / max(1.0, w.running))


@dataclass(frozen=True, slots=True)
class Reached:
    """How fast the steps of a window were, relative to the measured limits.

    Attributes:
        memory, compute, attention: shares of the rates of reading, of products and of attention.
        step, row: further seconds of a step, and of each sequence in it.
    """

    memory: float = 1.0
    compute: float = 1.0
    attention: float = 1.0
    step: float = 0.0
    row: float = 0.0


class _Same:
    """A configuration, equal only to itself: it has no hash."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.config is self.config


@lru_cache(maxsize=64)
def _work(
    engine: _Same, changes: tuple[tuple[str, object], ...]
) -> tuple[EngineConfig, RooflineCost]:
    """Return an engine's configuration with changes, and its step cost at any rates."""
    config, names = engine.config, dict(changes)
    if "quantization" in names:  # in place of the present one
        config = replace(config, weight_forms={})
    config = replace(config, **names)  # type: ignore[arg-type]
    return config, roofline(config, cautious_cpu(1, 0))


def cost_at(
    config: EngineConfig,
    limits: Limits | None,
    at: Reached,
    threads: float | None = None,
    /,
    **changes: object,
) -> RooflineCost:
    """Return the cost of a step with these configuration fields; None: with guessed limits."""
    config, work = _work(_Same(config), tuple(changes.items()))
    threads = config.num_threads if threads is None else threads
    known = cautious_cpu(math.ceil(threads), 0) if limits is None else profile_of(limits, threads)
    had = threads / math.ceil(threads) if limits is None else 1.0
    hardware = replace(
        known,
        bandwidth_share=had * at.memory,
        flops_share=had * known.flops_share * at.compute,
        attention_share=had * known.attention_share * at.attention,
        kv_share=had * known.kv_share * at.attention,
        overhead_seconds=at.step,
        seq_overhead_seconds=at.row,
    )
    return at_rates(work, config, hardware)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Steps of one size: their predicted parts, sequences, and measured seconds of one step."""

    count: int
    parts: StepParts
    seqs: float
    seconds: float


def reached(
    buckets: Sequence[Bucket], step: float, row: float, waited: float | None = None
) -> Reached:
    """Return the rates and overheads that predict the measured times best.

    Few sizes cannot tell five unknowns apart. So the fit prefers the measured limits and the given
    overheads.

    Args:
        step, row: usual overhead of a step and of a sequence, in seconds.
        waited: share of the time that threads waited for a core. The fit then prefers everything
            slowed by that wait, and one more overhead per step. If None, everything slowed alike.
    """
    seen, counts = ([getattr(b, name) for b in buckets] for name in ("seconds", "count"))
    others = [b.parts.states + b.parts.pairs + b.parts.others for b in buckets]
    fixed = [others, [step] * len(buckets), [row * b.seqs for b in buckets]]
    best, least = Reached(), math.inf
    for ratio in RATIOS:
        linear = [
            together(b.parts.weights, ratio * b.parts.products, b.parts.overlap) for b in buckets
        ]
        columns = list(zip(linear, *fixed, strict=True))
        usual = _slowed(columns, seen, counts, waited)
        times, error = _solve(columns, seen, counts, (TRUST, TRUST, VAGUE, VAGUE), usual)
        error += TRUST * math.log(ratio) ** 2
        if error < least:
            least = error
            reading = max(times[0], 1e-9)
            best = Reached(
                1.0 / reading, 1.0 / (ratio * reading), 1.0 / max(times[1], 1e-9),
                times[2] * step, times[3] * row,
            )  # fmt: skip
    return best


def fitted(
    columns: Sequence[Sequence[float]], seen: Sequence[float], counts: Sequence[int]
) -> list[float]:
    """Return factors of the columns, at least 0, whose sums are near `seen`.

    Args:
        columns: usual parts of each time, [times][parts].
        counts: how often each time was seen.
    """
    usual = _slowed(columns, seen, counts)
    return _solve(columns, seen, counts, [VAGUE] * len(columns[0]), usual)[0]


def _slowed(
    columns: Sequence[Sequence[float]],
    seen: Sequence[float],
    counts: Sequence[int],
    waited: float | None = None,
) -> list[float]:
    """Return factors of the columns with which they add up to what was seen; see `reached`."""
    total, *parts = (
        sum(n * one for n, one in zip(counts, times, strict=True))
        for times in (seen, *zip(*columns, strict=True))
    )
    alike = max(total, 1e-9) / max(1e-9, sum(parts))
    least = alike if waited is None else 1.0 / (1.0 - waited)
    if alike <= least or not parts[STEP] > 0.0:
        return [alike] * len(parts)
    factors = [least] * len(parts)
    factors[STEP] += (total - least * sum(parts)) / parts[STEP]
    return factors


def _solve(
    columns: Sequence[Sequence[float]],
    seen: Sequence[float],
    counts: Sequence[int],
    trust: Sequence[float],
    usual: Sequence[float],
) -> tuple[list[float], float]:
    """Return the factors of `fitted`, and their error.

    Args:
        trust: weight of each factor's `usual` value.
    """
    times = [max(one, 1e-9) for one in seen]
    total = sum(n * one for n, one in zip(counts, times, strict=True))
    # Relative errors, weighted by the steps' share of the time: the square of 1 / time.
    weights = [n / (total * one) for n, one in zip(counts, times, strict=True)]
    numbers = range(len(trust))
    matrix = [
        [sum(w * row[i] * row[j] for w, row in zip(weights, columns, strict=True)) for j in numbers]
        for i in numbers
    ]
    wanted = [
        sum(w * t * row[i] for w, t, row in zip(weights, times, columns, strict=True))
        + trust[i] / usual[i]
        for i in numbers
    ]
    for i in numbers:
        matrix[i][i] += trust[i] / usual[i] ** 2
    free, found = list(numbers), [0.0] * len(trust)
    while free:
        part = _solution([[matrix[i][j] for j in free] for i in free], [wanted[i] for i in free])
        found = [0.0] * len(trust)
        for i, value in zip(free, part, strict=True):
            found[i] = max(0.0, value)
        if min(part) >= 0.0:
            break
        del free[part.index(min(part))]
    error = sum(t * (x / u - 1.0) ** 2 for t, x, u in zip(trust, found, usual, strict=True))
    for w, one, row in zip(weights, times, columns, strict=True):
        error += w * (sum(x * y for x, y in zip(row, found, strict=True)) - one) ** 2
    return found, error


def _solution(matrix: list[list[float]], wanted: list[float]) -> list[float]:
    """Solve a small system whose matrix is symmetric and positive definite.

    Unknowns whose pivot is lost to rounding are 0.
    """
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    for i, pivot in enumerate(rows):
        if not pivot[i] > 0.0:
            continue
        for row in rows[:i] + rows[i + 1 :]:
            factor = row[i] / pivot[i]
            row[:] = [x - factor * y for x, y in zip(row, pivot, strict=True)]
    return [row[-1] / row[i] if row[i] > 0.0 else 0.0 for i, row in enumerate(rows)]
