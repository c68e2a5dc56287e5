"""Gains of scheduling flags by simulation: replay the recorded requests with each change.

The real scheduler runs the requests that the window saw, at the step times that it measured.
`python -m` reads evidence as JSON from stdin and writes the report: the server uses that, so that
its own process neither waits nor imports the scheduler.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quire.core.config import STEP_TOKENS, EngineConfig, TierConfig
from quire.explain.analyse import Predicted, explain
from quire.explain.causes.case import CACHING, LATEST, Case
from quire.explain.evidence import Evidence
from quire.explain.report import ITL, Change, Report
from quire.metrics.requests import MOST_RECORDED
from quire.simulate.fleet import Front, Outcome, Replica, simulate
from quire.simulate.stages import ModelledStage
from quire.simulate.workload import NO_PREFIX, Workload

LEAST_REQUESTS = 4
"""With fewer recorded requests, the cost model alone estimates."""
ROUNDS = 6
"""Requests of each client in a replay."""
FEWEST_ROUNDS = 3
"""In the first, caches fill. In the last, clients have nothing left to ask."""
MOST_STEPS = 1000
"""Longer replays are shortened, but not below `FEWEST_ROUNDS`."""
MOST_WORK, ROWS = 8 * MOST_STEPS, 32
"""Steps of all replays of a report, 0.25 ms each, of which so many rows take as long as one.
Further replays are not run."""
MOST_CLIENTS, MOST_BLOCKS = 4096, 2**18
"""Larger engines are not replayed: it would take too much time and memory."""
ALIKE = 1.5
"""A replay of the present engine whose speed differs by more from the window's is not used."""
CLOSED = 0.75
"""If the mean number of sequences in flight is at least this share of the maximum, each client
sends its next request when it has an answer. Else requests come at their times."""
STEPS_PER_REQUEST = 8
"""Steps whose outputs take the event loop as long as reading and checking a request."""
IDLE = 0.1
"""Without these counts, clients do that if the engine idles less."""


def explained(evidence: Evidence) -> Report:
    """Return the report, with simulated gains of scheduling flags."""
    return explain(evidence, lambda case: Replay(case).gain)


class _Speed(NamedTuple):
    """What a replay reached: output tokens/s, and the p99 of seconds between tokens."""

    tokens: float
    gap: float


class _Setting(NamedTuple):
    """An engine, what is before it, and its requests; without clients these come at their times."""

    config: EngineConfig
    front: Front
    load: Workload
    clients: int | None


class Replay:
    """The load of a window, on the scheduler that it had and on changed ones."""

    def __init__(self, case: Case) -> None:
        self._case, self._window = case, case.window
        self._config = replace(
            case.evidence.config, tiers=TierConfig(), lora=None, num_blocks=case.window.kv_blocks
        )
        fits = dict.fromkeys(case.estimate.serving())  # often both are the same
        self._stages = [
            ModelledStage(fit.cost, request_seconds=fit.request_seconds) for fit in fits
        ]
        self._known: dict[tuple[bool, int], _Speed] = {}
        self._gains: dict[str, Predicted | None] = {}
        self._left = float(MOST_WORK)

    def gain(self, change: Change) -> Predicted | None:
        """Return the simulated gain of a change of scheduling; None if it cannot be simulated.

        Several causes may propose the same change, which is simulated once.
        """
        key = f"{change.metric} {change.fields}"
        if key not in self._gains:
            self._gains[key] = self._gain(change)
        return self._gains[key]

    def _gain(self, change: Change) -> Predicted | None:
        window, config = self._window, self._config
        if config.pooling or config.scheduler.speculative or not self._stages:
            return None
        if len(window.arrivals) < LEAST_REQUESTS or self._streams() > MOST_CLIENTS:
            return None
        now, then = self._settings(change.fields)
        for setting in (now, then):
            c = setting.config
            blocks = c.num_blocks or 0
            if blocks * c.block_size < c.scheduler.max_model_len or blocks > MOST_BLOCKS:
                return None
            if c.scheduler.max_num_seqs > MOST_CLIENTS:
                return None
        begun = (bool(change.fields.keys() & CACHING), 0) in self._known
        work = _work(then, window.running) + (0.0 if begun else _work(now, window.running))
        if work * len(self._stages) > self._left:
            return None
        self._left -= work * len(self._stages)
        ratios = [self._ratio(now, then, change, fit) for fit in range(len(self._stages))]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) < len(ratios):
            return None
        middle = math.prod(known) ** (1.0 / len(known))
        gain = max(0.0, middle - 1.0)
        if change.metric == ITL and then.config.num_scheduler_steps > 1:
            return Predicted(gain, 1.0)  # what delays a turn delays a burst. Seen: 7 of 20 times
        return Predicted(gain, (max(known) - min(known)) / 2.0 / gain if gain else 0.0)

    def _ratio(self, now: _Setting, then: _Setting, change: Change, fit: int) -> float | None:
        """Return the speed after a change relative to before; None if that is unlike the window."""
        key = bool(change.fields.keys() & CACHING), fit
        if key not in self._known:
            self._known[key] = self._run(now, fit)
        before, after, seen = self._known[key], self._run(then, fit), self._window.output_tok_s
        if not seen / ALIKE < before.tokens < seen * ALIKE or not min(*before, *after) > 0.0:
            return None
        if change.metric == ITL:
            return min(before.gap, self._window.itl_p99 or before.gap) / after.gap
        if now.clients is not None:
            return after.tokens / before.tokens
        # Requests that come at their times get no faster than they come.
        return min(after.tokens / max(before.tokens, seen), max(1.0, self._asked() / seen))

    def _asked(self) -> float:
        """Return the output tokens/s that the requests of the window asked for when they came."""
        w = self._window
        came = [r for r in w.arrivals if r.arrived > 0.0]
        all_known = len(w.arrivals) < MOST_RECORDED or len(came) < len(w.arrivals)
        begin = 0.0 if all_known or not came else came[0].arrived
        usual = w.generation_tokens / max(1, w.ended)
        asked = sum(r.sequences * (r.output_tokens or usual) for r in came)
        return asked / max(1e-9, w.seconds - begin)

    def _settings(self, fields: dict[str, Any]) -> tuple[_Setting, _Setting]:
        """Return the engine as it is, and with fields of `EngineArgs` changed."""
        config, front = self._config, self._front()
        caching = bool(fields.keys() & CACHING)
        other, load = changed(config, fields), self._load(caching)
        now = _Setting(config, front, load, self._clients())
        if not caching:
            lanes = fields.get("tokenizer_pool_size", front.tokenizers)
            return now, now._replace(config=other, front=replace(front, tokenizers=lanes))
        # What was found in the cache is computed by neither; all that may be found, by the first.
        found = round(self._window.cached_tokens / max(1, self._window.requests))
        misses = replace(
            load,
            input_lens=np.maximum(1, load.input_lens - found),
            prefixes=np.full(len(load), NO_PREFIX),
            prefix_lens=np.zeros(len(load), dtype=np.int64),
        )
        tokens = int(load.input_lens.sum() + load.output_lens.sum())
        needed = tokens // config.block_size + len(load)
        roomy = max(needed, config.num_blocks or 0)
        other = replace(other, enable_prefix_caching=True, num_blocks=min(roomy, MOST_BLOCKS))
        return now._replace(load=misses), now._replace(config=other)

    def _clients(self) -> int | None:
        """Return how many clients send one request after the other; None if they do not."""
        w = self._window
        if most := w.most_in_flight:
            return most if w.in_flight >= CLOSED * most else None
        return max(1, round(w.running + w.waiting)) if w.share("idle") < IDLE else None

    def _streams(self) -> int:
        """Return how many requests are in the engine at a time."""
        return self._clients() or max(1, round(self._window.running + self._window.waiting))

    def _front(self) -> Front:
        """Return what a request passes before the core."""
        w, args = self._window, self._case.evidence.args
        clients = self._clients()
        each = sum(r.sequences for r in w.arrivals) / len(w.arrivals)
        sequences = max(1, w.requests) * each  # the load has one request for each
        handled = sequences + w.steps / STEPS_PER_REQUEST
        away = 0.0 if clients is None else max(0.0, clients - w.in_flight) * w.seconds
        return Front(
            request_seconds=w.parts.get("http", 0.0) / handled,
            tokenizers=max(1, args.tokenizer_pool_size),
            tokenizer_seconds=w.parts.get("tokenize", 0.0) / sequences,
            client_seconds=away / sequences if w.most_in_flight else 0.0,
        )

    def _load(self, caching: bool) -> Workload:
        """Return the recorded requests, as often as they fill the batch for some rounds."""
        w = self._window
        clients, arrivals = self._clients(), w.arrivals
        if clients is None:  # earlier ones have no times
            arrivals = [r for r in arrivals if r.arrived > 0.0] or arrivals
        latest = arrivals  # of which the first may have come to an empty cache
        if caching and len(latest) >= 2 * LEAST_REQUESTS:
            latest = latest[len(latest) // 2 :]
        partial = len(latest) < len(arrivals) or len(latest) == MOST_RECORDED
        begin = latest[0].arrived if partial else 0.0
        requests = [r for r in latest for _ in range(r.sequences)]
        known = [r.output_tokens for r in requests if r.output_tokens] or [1]
        usual = sum(known) // len(known)
        most = self._streams()
        rows = max(1.0, min(w.running, most))
        lengths = sum(r.output_tokens or usual for r in requests) / len(requests)
        wanted = ROUNDS * most if clients else len(requests)
        count = max(FEWEST_ROUNDS * most, min(wanted, int(MOST_STEPS * rows / lengths)))
        picked = [requests[i % len(requests)] for i in range(count)]
        shared = np.array([r.shared_tokens for r in picked])
        turns = np.arange(count) // len(requests) * (w.seconds - begin)
        times = np.array([r.arrived - begin for r in picked]) + turns
        return Workload(
            arrivals=times if clients is None else np.zeros(count),
            input_lens=np.array([r.prompt_tokens for r in picked]),
            output_lens=np.array([r.output_tokens or usual for r in picked]),
            prefixes=np.where(shared > 0, 0, NO_PREFIX),
            prefix_lens=shared,
        )

    def _run(self, setting: _Setting, fit: int) -> _Speed:
        config = setting.config
        replica = Replica(config, config.num_blocks or 1, [self._stages[fit]])
        outcome = simulate(
            setting.load, [replica], num_clients=setting.clients, front=setting.front
        )
        gaps = outcome.gaps
        mean = float(np.nansum(outcome.last - outcome.first)) / max(1, int(gaps.counts.sum()))
        late = max(gaps.percentile(0.99), LATEST * mean)  # no replay has the system's delays
        return _Speed(_rate(outcome, setting.clients or 0), late)


def _work(setting: _Setting, running: float) -> float:
    """Return about how many steps a replay takes as long as, with so many sequences at once."""
    load, config = setting.load, setting.config
    limits, prompts, tokens = config.scheduler, load.input_lens.sum(), load.output_lens.sum()
    fit = (config.num_blocks or 1) * config.block_size * len(load) / (prompts + tokens / 2)
    rows = max(1.0, min(setting.clients or running, limits.max_num_seqs, fit))
    return float(tokens / rows + tokens / ROWS + prompts / limits.max_num_batched_tokens)


def _rate(outcome: Outcome, clients: int) -> float:
    """Return tokens/s from the first end of as many requests as clients to the last beginning.

    Before, the caches fill. Later, clients have nothing left to ask.
    """
    ends = np.sort(outcome.last)
    begin, end = ends[min(clients, len(ends)) - 1] if clients else 0.0, np.nanmax(outcome.sent)
    if end <= begin:
        begin, end = np.nanmin(outcome.sent), ends[-1]
    instant = 1e-9  # a single token's first and last times are equal
    spans = outcome.last - outcome.first + instant
    inside = np.minimum(outcome.last, end) - np.maximum(outcome.first, begin) + instant
    return float((outcome.tokens * np.clip(inside / spans, 0.0, 1.0)).sum() / (end - begin))


def changed(config: EngineConfig, fields: dict[str, Any]) -> EngineConfig:
    """Return the configuration with fields of `EngineArgs`, of those in `case.SCHEDULING`."""
    limits: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    blocks = config.num_blocks or 0
    for name, value in fields.items():
        if name in ("max_num_seqs", "max_itl_stretch", "max_num_batched_tokens"):
            limits[name] = STEP_TOKENS if value is None else value
        elif name == "num_gpu_blocks_override":
            whole["num_blocks"] = value
        elif name == "kv_cache_memory_bytes":
            whole["num_blocks"] = round(blocks * value / (config.kv_cache_memory_bytes or value))
        elif name not in ("tokenizer_pool_size", "kv_offloading_size"):
            whole[name] = value
    return replace(config, scheduler=replace(config.scheduler, **limits), **whole)


def main() -> None:
    """Read evidence from stdin, and write the report to stdout."""
    evidence = msgspec.json.decode(sys.stdin.buffer.read(), type=Evidence)
    sys.stdout.buffer.write(msgspec.json.encode(explained(evidence)))


if __name__ == "__main__":
    main()
