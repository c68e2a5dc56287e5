"""Measure what the first change of a fault gains: two servers in turns, under the same load."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.explain_faults import gained, save
from benchmarks.explain_loads import EMBEDDED, FAULTS, OPT, TIGHT, Fault, asks, of_tokens, shared
from benchmarks.explain_servers import Measured, measured, serving
from benchmarks.explain_tables import decided
from quire.bench.prove import proof_of
from quire.explain.evidence import Evidence
from quire.explain.report import START, THROUGHPUT, Change
from quire.explain.whatif import explained

STANDBY = 12.0
"""Seconds after which a server's standby process has imported everything."""
HELD_OUT: dict[str, Fault] = {
    "opt_seats": Fault(("queueing",), (*OPT, "--max-num-seqs", "2"), asks(), clients=6),
    "paused_seats": Fault(
        ("queueing",), (*EMBEDDED, "--max-num-seqs", "1"), asks(max_tokens=24), clients=12,
        pause=0.3,
    ),
    "opt_kv": Fault(
        ("kv_cache_too_small", "preemption"),
        (*OPT, *TIGHT, "--num-gpu-blocks-override", "40"), of_tokens(64, 48), clients=12,
    ),
    "opt_no_cache": Fault(
        ("prefix_misses",), (*OPT, "--no-enable-prefix-caching"), shared, clients=3
    ),
}  # fmt: skip
"""Faults with other models and clients, for proofs of rules that were made without them."""
PROVABLE = (
    "seats", "tiny_kv", "preemption", "no_cache", "few_states", "lora", "tokenizer",
    "template", "chunks", "long_prompts", "stretch", "many_steps", "drafter", "ranks",
    "few_threads", "threads", "float32", "fp8", "reference", "quota", "short_context", "unkept",
)  # fmt: skip
"""Faults whose first change is a flag of the engine."""
MOST = 4
"""Times as many pairs are measured at most, until they agree."""
LONGEST_WRITE = 60.0
"""Seconds in which packed weights are written."""
UNLIKE = 0.2
"""A pair beside so many more CPUs of other programs on one side does not count."""


def changed(flags: tuple[str, ...], change: Change) -> tuple[str, ...]:
    """Return a server's flags with a change; of two equal flags, the last one counts."""
    kept = list(flags)
    for name in (name for name, value in change.fields.items() if value is None):
        flag = f"--{name.replace('_', '-')}"
        if flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    return (*kept, *(change.flag.split() if change.flag.startswith("--") else ()))


def speed(seen: Measured, metric: str) -> float:
    """Return tokens/s, or one over the p99 of seconds between the events of a stream."""
    return seen.tokens if metric == THROUGHPUT else 1.0 / max(1e-3, seen.late)


def others(evidence: Evidence) -> float:
    """Return the CPUs that other programs than clients used."""
    host = evidence.host
    return 0.0 if host is None else host.others - host.clients


def proven(name: str, repetitions: int, kept: Path | None) -> dict[str, Any]:
    """Return the row of the first change of the right cause, if a flag makes it."""
    fault = (FAULTS | HELD_OUT)[name]
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        before = stack.enter_context(serving(fault, folders[0]))
        time.sleep(STANDBY)
        evidence = measured(before, fault).evidence
        report = explained(msgspec.structs.replace(evidence, halves=[]))
        causes = [finding.cause for finding in report.causes]
        row = {"fault": name, "causes": causes[:4], "text": report.verdict.text}
        change = next((c for c in report.changes if c.fields), None)
        if not set(causes[:1]) & set(fault.causes) or change is None:
            return row
        other = replace(fault, flags=changed(fault.flags, change))
        if change.metric == START:
            return row | started(change, fault, other, folders[0], repetitions)
        after = stack.enter_context(serving(other, folders[1]))
        time.sleep(STANDBY)
        sides = [(before, fault), (after, other)]
        pairs: list[tuple[float, float]] = []
        beside: list[list[float]] = []
        for number in range(MOST * repetitions):
            turn = -1 if number % 2 else 1
            seen = [measured(*side) for side in sides[::turn]][::turn]
            others_of = [others(one.evidence) for one in seen]
            if abs(others_of[1] - others_of[0]) > UNLIKE and number + 1 < MOST * repetitions:
                continue
            first, second = (speed(one, change.metric) for one in seen)
            pairs.append((first, second))
            beside.append(others_of)
            found = row | {"others": max(map(max, beside)), "pairs": pairs} | judged(change, pairs)
            if len(pairs) >= repetitions and decided(found):
                break
        if kept is not None:
            save(evidence, kept / f"{name}.json")
            save(seen[1].evidence, kept / f"{name}_after.json")
        return found


def started(
    change: Change, fault: Fault, other: Fault, folder: Path, repetitions: int
) -> dict[str, Any]:
    """Return the gain of paired starts, after a first one of the changed server."""

    def speed_of(fault: Fault) -> float:
        begin = time.monotonic()
        with serving(fault, folder):
            return 1.0 / (time.monotonic() - begin)

    with serving(other, folder):  # keeps the packed weights
        end = time.monotonic() + LONGEST_WRITE
        while not any(folder.rglob("*.packed")) and time.monotonic() < end:
            time.sleep(0.1)
    pairs = [(speed_of(fault), speed_of(other)) for _ in range(repetitions)]
    return {"others": 0.0, "pairs": pairs} | judged(change, pairs)


def judged(change: Change, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the gain of paired windows: the median; of five or more, the extremes do not count."""
    ordered = sorted(pairs, key=lambda pair: pair[1] / max(1e-9, pair[0]))
    cut = len(pairs) // 5
    return gained(change, proof_of(change, ordered[cut : len(ordered) - cut]))
