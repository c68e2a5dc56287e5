"""Gains of scheduling flags by simulation: replay the recorded requests with each change.

The real scheduler runs the requests that the window saw, at the step times that it measured.
`python -m` reads evidence as JSON from stdin and writes the report: the server uses that, so that
its own process neither waits nor imports the scheduler.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quire.core.config import STEP_TOKENS, EngineConfig, TierConfig
from quire.core.cost import RooflineCost
from quire.explain.analyse import explain
from quire.explain.causes.case import Case
from quire.explain.evidence import Evidence
from quire.explain.report import ITL, Change, Report
from quire.simulate.fleet import Replica, simulate
from quire.simulate.stages import ModelledStage
from quire.simulate.workload import NO_PREFIX, Workload

LEAST_REQUESTS = 4
"""With fewer recorded requests, the cost model alone estimates."""
ROUNDS = 3
"""Requests of each client in a replay."""
MOST_STEPS = 500
"""Longer replays are shortened, but not below one request for each client."""
MOST_CLIENTS, MOST_BLOCKS = 4096, 2**18
"""Larger engines are not replayed: it would take too much time and memory."""
ALIKE = 1.5
"""A replay of the present engine whose speed differs by more from the window's is not used."""
CLOSED = 0.1
"""If the engine idles less, clients send the next request as soon as they have an answer."""


def explained(evidence: Evidence) -> Report:
    """Return the report, with simulated gains of scheduling flags."""
    return explain(evidence, lambda case: Replay(case).gain)


class _Speed(NamedTuple):
    """What a replay reached: output tokens/s, and the p99 of seconds between tokens."""

    tokens: float
    gap: float


class _Load(NamedTuple):
    """Requests, and the number of clients that send one after the other; None: at their times."""

    workload: Workload
    clients: int | None


class Replay:
    """The load of a window, on the scheduler that it had and on changed ones."""

    def __init__(self, case: Case) -> None:
        self._window = case.window
        self._config = replace(
            case.evidence.config, tiers=TierConfig(), lora=None, num_blocks=case.window.kv_blocks
        )
        self._cost = case.estimate.serving_cost()

    def gain(self, change: Change) -> float | None:
        """Return the simulated gain of a change of scheduling; None if it cannot be simulated."""
        window, config, cost = self._window, self._config, self._cost
        if config.pooling or config.model.recurrent or config.scheduler.speculative:
            return None
        if len(window.arrivals) < LEAST_REQUESTS or not window.running or cost is None:
            return None
        if window.running + window.waiting > MOST_CLIENTS:
            return None
        other = changed(config, change.fields)
        blocks = [config.num_blocks or 0, other.num_blocks or 0]
        if min(blocks) * config.block_size < config.scheduler.max_model_len:
            return None
        if max(*blocks, other.scheduler.max_num_seqs) > MOST_BLOCKS:
            return None
        load = self._load(other.scheduler.max_num_seqs)
        before, after = (self._run(c, load, cost) for c in (config, other))
        seen = self._window.output_tok_s
        if not seen / ALIKE < before.tokens < seen * ALIKE or not min(*before, *after) > 0.0:
            return None
        ratio = before.gap / after.gap if change.metric == ITL else after.tokens / before.tokens
        return max(0.0, ratio - 1.0)

    def _load(self, seats: int) -> _Load:
        """Return the recorded requests, as often as they fill the batch for some rounds."""
        w = self._window
        requests = [r for r in w.arrivals for _ in range(r.sequences)]
        known = [r.output_tokens for r in requests if r.output_tokens] or [1]
        usual = sum(known) // len(known)
        clients = max(1, round(w.running + w.waiting))
        rows = min(clients, seats)
        lengths = sum(r.output_tokens or usual for r in requests) / len(requests)
        count = max(clients, min(ROUNDS * clients, int(MOST_STEPS * rows / lengths)))
        picked = [requests[i % len(requests)] for i in range(count)]
        closed = w.share("idle") < CLOSED
        shared = np.array([r.shared_tokens for r in picked])
        turns = np.arange(count) // len(requests) * w.seconds
        return _Load(
            Workload(
                arrivals=np.array([0.0 if closed else r.arrived for r in picked])
                + (0.0 if closed else turns),
                input_lens=np.array([r.prompt_tokens for r in picked]),
                output_lens=np.array([r.output_tokens or usual for r in picked]),
                prefixes=np.where(shared > 0, 0, NO_PREFIX),
                prefix_lens=shared,
            ),
            clients if closed else None,
        )

    @staticmethod
    def _run(config: EngineConfig, load: _Load, cost: RooflineCost) -> _Speed:
        replica = Replica(config, config.num_blocks or 1, [ModelledStage(cost)])
        outcome = simulate(load.workload, [replica], num_clients=load.clients)
        seconds = float(np.nanmax(outcome.last) - np.nanmin(outcome.sent))
        return _Speed(float(outcome.tokens.sum()) / seconds, outcome.gaps.percentile(0.99))


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
        else:
            whole[name] = value
    return replace(config, scheduler=replace(config.scheduler, **limits), **whole)


def main() -> None:
    """Read evidence from stdin, and write the report to stdout."""
    evidence = msgspec.json.decode(sys.stdin.buffer.read(), type=Evidence)
    sys.stdout.buffer.write(msgspec.json.encode(explained(evidence)))


if __name__ == "__main__":
    main()
