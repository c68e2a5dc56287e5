"""The gain of a change: the cost model on the observed steps.

Rates and overheads are fitted to the measured times of the observed steps. Only ratios of the
predictions are used, and only for the model's part of the window.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from quire.core.cost import RooflineCost, together
from quire.explain.bounds import NEARLY_ALL
from quire.explain.evidence import QUIET, Evidence
from quire.explain.limits import profile_of
from quire.explain.step_mix import Bucket, Reached, Step, StepMix, cost_at, fitted, reached
from quire.models.cost import at_rates

THREADING = 0.85
"""Share of the predicted saving that more threads reach: they wait for each other after each op."""
USUAL = 0.9
"""Share of the rates of kernels that steps reach if nothing is wrong."""
EXPLAINED = 0.5
"""Share of the limits below which something else slows operations down."""
OPS = {
    "products": ("linear", "logits", "head_linear", "moe"),
    "attention": ("paged_attention", "latent_attention"),
}
"""Operations whose time the types of weights and of the KV cache decide."""
OP_SECONDS = 5e-6
"""Time of an operation that has nothing to read or to multiply."""
LAYER_OPS = 9
"""Operations of a layer, if none were profiled."""
LONG_CHUNK = 2048
"""Tokens of a step of prompts, by default."""
ROW = 0.05
"""What a sequence adds to the core's other work for a step, relative to what that takes without
any: 0.015 offline from 1 to 32 sequences of a tiny model, 0.05 served from 2 to 7."""


class Serving(NamedTuple):
    """The cost of a step with the core's other work, and the core's time for a new request."""

    cost: RooflineCost
    request_seconds: float


class Estimator:
    """Predicts other configurations of the observed engine.

    A window whose steps have few sizes cannot tell what made them slow. So there are two fits: all
    was slow alike, or waiting for cores slowed all, and each step had an overhead
    (`step_mix.reached`).
    """

    def __init__(self, evidence: Evidence) -> None:
        self._e = evidence
        self._window = evidence.window
        self._config = evidence.config
        self._mix = StepMix(self._window, self._config.block_size)
        self._steps = self._mix.steps
        self._cost_of = partial(cost_at, self._config, evidence.limits)
        self._uncalibrated = self._cost_of(Reached())
        self._fits = self._calibrated()
        self._cost = self._cost_of(self._fits[0])

    @property
    def measured(self) -> bool:
        """Return whether the machine's limits were measured, not guessed."""
        return self._e.limits is not None

    def model_seconds(self) -> float:
        """Return the cost model's prediction for the observed steps, at the measured limits."""
        return self._seconds(self._uncalibrated, self._steps)

    def model_ratio(self, **changes: object) -> float:
        """Return the model's time with these configuration fields, relative to without.

        Only operations whose bytes or rates change take another time: that of the limits, of which
        they reach at least the usual share unless something else slows them.
        """
        limits, model = self._e.limits, self._window.parts.get("model", 0.0)
        if not self._steps or model <= 0.0:
            return 1.0
        now, then = (
            self._kinds(cost) for cost in (self._uncalibrated, self._cost_of(Reached(), **changes))
        )
        known = self._e.others <= QUIET and limits is not None and bool(limits.reads)
        saved = 0.0
        for kind, share in self._shares(now).items():
            seen = max(1e-9, share * model * (1.0 - self._stalled))
            of_limit = now[kind] / seen
            if known and of_limit > EXPLAINED:
                of_limit = max(of_limit, USUAL)
            if of_limit > 1.0:  # stale limits, or those of this type alone
                of_limit **= 0.5
            if then[kind] != now[kind] > 0.0:
                saved += seen - then[kind] / of_limit
        return 1.0 - saved / model

    @property
    def _stalled(self) -> float:
        """Return the share of the model's time that follows the tokens, not the operations.

        On a quiet machine threads wait for the engine's front end and clients, which need their
        time per token. An operation ends with its last thread.
        """
        alone = self._e.others <= QUIET
        return 1.0 - (1.0 - self._e.waited) ** self._config.num_threads if alone else 0.0

    def _kinds(self, cost: RooflineCost) -> dict[str, float]:
        """Return the seconds of the products and of attention in the observed steps."""
        parts = [(s.count, s.parts(cost)) for s in self._steps]
        return {
            "products": sum(n * together(p.weights, p.products, p.overlap) for n, p in parts),
            "attention": sum(n * (p.pairs + p.others) for n, p in parts),
        }

    def _shares(self, predicted: dict[str, float]) -> dict[str, float]:
        """Return the shares of the model's time in which these kinds of operations ran."""
        profile, total = self._e.ops, sum(predicted.values())
        if profile is None or not profile.ops:
            return {kind: seconds / total for kind, seconds in predicted.items()}
        total = max(profile.model_seconds, sum(op.seconds for op in profile.ops))
        return {
            kind: sum(op.seconds for op in profile.ops if op.name in OPS[kind]) / total
            for kind in predicted
        }

    def threads_ratio(self, before: float, after: float) -> float:
        """Return the model's time with `after` threads, relative to `before` threads.

        A thread that has its core for half of the time counts half.
        """
        if not self._steps:
            return 1.0
        first, second = (
            self._seconds(self._cost_of(self._fits[0], n), self._steps) for n in (before, after)
        )
        ratio = second / first
        return 1.0 - THREADING * (1.0 - ratio) if after > before else ratio

    def serving(self) -> list[Serving]:
        """Return what the core's work costs by each fit; empty without steps.

        Sampling takes a fixed time, about that of preparing a step, and more if rows are drawn.
        """
        w, steps = self._window, self._steps
        if not steps:
            return []
        rest = max(0.0, 1.0 - w.share("model", "idle")) * w.seconds
        drawing = max(0.0, w.parts.get("sample", 0.0) - w.parts.get("prepare", 0.0))
        drawing = min(drawing, rest) / max(1e-9, sum(s.count * s.seqs for s in steps))
        usual = rest - sum(s.count * drawing * s.seqs for s in steps)
        usual /= sum(s.count * (1.0 + ROW * s.seqs + s.prompts) for s in steps)
        each_row = ROW * usual + drawing
        columns = [[usual, each_row * s.seqs, usual * s.prompts] for s in steps]
        seconds = w.step_rest
        if len(seconds) != len(steps) or not sum(seconds):
            seconds = [s.count * sum(column) for s, column in zip(steps, columns, strict=True)]
        scale = rest / max(1e-9, sum(seconds))
        each = [scale * t / s.count for s, t in zip(steps, seconds, strict=True)]
        steps_part, rows_part, prompts_part = fitted(columns, each, [s.count for s in steps])
        found = []
        for cost in map(self._cost_of, self._fits):
            served = replace(
                cost,
                overhead_seconds=cost.overhead_seconds + usual * steps_part,
                seq_overhead_seconds=cost.seq_overhead_seconds + each_row * rows_part,
            )
            step, row = served.overhead_seconds, served.seq_overhead_seconds
            host = sum(s.count * (step + row * s.seqs) for s in steps)
            turns = min(1.0, self._turn_seconds() / max(1e-9, host))
            found.append(Serving(replace(served, turn_share=turns), usual * prompts_part))
        return found

    def _turn_seconds(self) -> float:
        """Return the core's time around steps; that of inputs and samples is each pass's."""
        each = ("model", "idle", "sample", "prepare")
        return max(0.0, 1.0 - self._window.share(*each)) * self._window.seconds

    def step_seconds(self, tokens: float) -> float:
        """Return the model's time for one step of the running sequences with `tokens` rows."""
        return self._seconds(self._cost, [self._mix.decoding(1, tokens)])

    def usual_ratio(self, threads: float) -> float:
        """Return the model's time at the usual shares of the limits, relative to the observed time.

        `threads`: the number of threads that have a core.
        """
        observed = self._window.parts.get("model", 0.0)
        if not self._steps or observed <= 0.0:
            return 1.0
        usual = self._seconds(self._cost_of(Reached(USUAL, USUAL, USUAL), threads), self._steps)
        return min(1.0, max(usual, self._calls() * OP_SECONDS) / observed)

    def _calls(self) -> float:
        """Return the number of operations in the window."""
        profile = self._e.ops
        if profile is not None and profile.ops:
            return sum(op.calls for op in profile.ops) / profile.steps * self._window.steps
        return float(LAYER_OPS * len(self._config.model.layers) * self._window.steps)

    def needed_share(self) -> float:
        """Return the least share of the window in which its output tokens can be computed.

        It is that of their products on all cores in the fastest type; 0.0 with unknown limits.
        """
        limits, observed = self._e.limits, self._window.parts.get("model", 0.0)
        if limits is None or observed <= 0.0 or not self._steps:
            return 0.0
        fastest = max(rate for rates in limits.flops.values() for rate in rates.values())
        each = self._cost.flops_per_token + self._cost.flops_per_row
        stale = min(1.0, observed / max(1e-9, self.model_seconds()))
        needed = stale * self._window.generation_tokens * each / fastest
        return min(needed, observed) / self._window.seconds

    def chunk_saving(self, budget: int) -> float:
        """Return the share of the window that steps of up to `LONG_CHUNK` tokens would save.

        Args:
            budget: present limit of a step's tokens; only steps that reach it are joined.
        """
        full = [s for s in self._steps if s.tokens >= 0.8 * budget]
        tokens = sum(s.count * s.tokens for s in full)
        at_once = min(LONG_CHUNK, self._mix.own * (self._window.running + self._window.waiting))
        if not tokens or budget >= at_once:
            return 0.0
        cost = self.serving()[0].cost  # each step has the core's other work, too
        after = self._seconds(cost, [self._mix.of_size(1, at_once)]) * tokens / at_once
        saved = self._seconds(cost, full) - after
        return min(1.0 - self._window.share("idle"), max(0.0, saved / self._window.seconds))

    def of_limit(self) -> tuple[str, float]:
        """Return the limit nearer to the observed steps, and the share of it that they reached.

        The share follows from the bytes and operations of a step, without a profile. It exceeds 1
        if the limits are stale.
        """
        times = {name: self._seconds(cost, self._steps) for name, cost in self._alone().items()}
        nearer = max(times, key=times.__getitem__)
        return nearer, times[nearer] / max(1e-9, self._window.parts.get("model", 0.0))

    def _alone(self) -> dict[str, RooflineCost]:
        """Return one cost model per limit, with the other limit removed."""
        cost, endless = self._uncalibrated, 1e30
        if self._e.limits is not None:  # the peaks, not what kernels usually reach
            peaks = profile_of(self._e.limits, self._config.num_threads, peaks=True)
            cost = at_rates(cost, self._config, peaks)
        return {
            "memory": replace(cost, flops_per_second=endless, attention_flops_per_second=endless),
            "compute": replace(cost, bytes_per_second=endless, kv_bytes_per_second=endless),
        }

    def _calibrated(self) -> list[Reached]:
        """Return the rates and overheads of the steps, fitted to their measured times."""
        w, steps = self._window, self._steps
        if not steps or w.parts.get("model", 0.0) <= 0.0:
            return [Reached()]
        step = self._calls() / max(1, w.steps) * OP_SECONDS
        row = ROW * step
        parts = [s.parts(self._uncalibrated) for s in steps]
        seconds = w.step_seconds
        if len(seconds) != len(steps) or not sum(seconds):  # unknown: all are as much too slow
            pairs = zip(steps, parts, strict=True)
            seconds = [s.count * (p.seconds() + step + row * s.seqs) for s, p in pairs]
        scale = w.parts["model"] / sum(seconds)
        buckets = [
            Bucket(s.count, p, s.seqs, scale * t / s.count)
            for s, p, t in zip(steps, parts, seconds, strict=True)
            if t > 0.0
        ]
        return [reached(buckets, step, row, waited) for waited in (None, self._e.waited)]

    def batch_gain(self, seqs: float, recomputed: float = 0.0) -> float:
        """Return the gain in tokens/s if `seqs` sequences ran at once.

        Args:
            recomputed: share of the window that ends with the preemptions.
        """
        now = max(self._window.running, 1.0)
        if seqs <= now or not self._steps:
            return 0.0
        cost, context = self.serving()[0].cost, self._mix.context
        small, large = (
            cost.seconds(max(1, round(n)), max(1, round(n)), round(n * context))
            for n in (now, seqs)
        )
        growth, prompts = seqs / now, self.prompt_share
        # Prompts cost each sequence the same. More sequences share a step's reading and fixed cost.
        before = max(prompts, 1.0 - self._window.share("idle"))
        after = prompts - min(recomputed, prompts) + (before - prompts) * large / small / growth
        if after <= 0.0:  # the engine was idle
            return 0.0
        most = growth / (1.0 - min(recomputed, NEARLY_ALL))
        return max(0.0, min(before / after, most) - 1.0)

    @cached_property
    def prompt_share(self) -> float:
        """Return the share of the window that prompts took, without the decoded tokens."""
        whole = self._seconds(self._cost, self._steps)
        decode = [self._mix.decoding(s.count, min(s.tokens, self._mix.rows)) for s in self._steps]
        model = self._window.share("model")
        return max(0.0, model * (1.0 - self._seconds(self._cost, decode) / whole)) if whole else 0.0

    def recomputing_share(self, tokens: int) -> float:
        """Return the share of the window needed to compute this many prompt tokens."""
        return self.prompt_share * min(1.0, tokens / self._mix.prompt_tokens)

    def drafts_share(self) -> float:
        """Return the share of the window in which the model computed drafts."""
        drafts = self._mix.drafts
        plain = [self._mix.without_drafts(s) for s in self._steps]
        whole = self._seconds(self._cost, self._steps)
        saved = whole - self._seconds(self._cost, plain)
        if not drafts or not whole:
            return 0.0
        return self._window.share("model") * (1.0 - self._stalled) * max(0.0, saved) / whole

    def cached_share(self, tokens: int) -> float:
        """Return the share of the window that `tokens` more cached prompt tokens would save.

        The other tokens still attend to them.
        """
        requests = max(1, self._window.requests)
        own = min(self._mix.own, max(1.0, self._mix.own - tokens / requests))
        seconds = [
            self._seconds(self._cost, [self._mix.with_prompts(requests, count, 0.0)])
            for count in (self._mix.own, own)
        ]
        return self.prompt_share * (1.0 - seconds[1] / seconds[0]) if seconds[0] else 0.0

    @staticmethod
    def _seconds(cost: RooflineCost, steps: list[Step]) -> float:
        return sum(s.count * s.parts(cost).seconds() for s in steps)
