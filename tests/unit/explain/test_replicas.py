"""Two replicas that do the same are judged as one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from quire.explain.analyse import explain
from quire.explain.evidence import Evidence
from quire.explain.host import HostUse, Worker
from tests.unit.explain.made import healthy

TWICE = (
    *("steps", "computed_tokens", "requests", "finished", "prompt_tokens", "generation_tokens"),
    *("running", "waiting", "demand", "kv_blocks", "preemptions", "repeated_tokens"),
)
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "queueing": {"args": {"max_num_seqs": 8}, "waiting": 16.0, "demand": 24},
    "kv_cache_too_small": {"waiting": 20.0, "demand": 28, "kv_share": 0.9},
    "prefix_misses": {
        "args": {"enable_prefix_caching": False}, "repeated_tokens": 80_000, "requests": 100,
        "prompt_tokens": 100_000, "computed_tokens": 108_000,
        "step_sizes": [(8.0, 900), (1008.0, 100)],
    },
    "wide_weights": {"args": {"dtype": "float32"}},
    "few_threads": {"args": {"num_threads": 1}},
}  # fmt: skip


def twice(evidence: Evidence) -> Evidence:
    """Return the evidence of two such replicas, on twice the cores."""
    w = evidence.window
    window = msgspec.structs.replace(
        w,
        step_sizes=[(tokens, 2 * count) for tokens, count in w.step_sizes],
        **{name: 2 * getattr(w, name) for name in TWICE},
    )
    args = replace(evidence.args, data_parallel_size=2)
    return msgspec.structs.replace(evidence, window=window, args=args, cores=2 * evidence.cores)


@pytest.mark.parametrize("cause", FAULTS)
def test_two_replicas_have_the_cause_of_one(cause: str) -> None:
    one = healthy(**FAULTS[cause])
    alone, both = explain(one), explain(twice(one))
    assert cause in (alone.verdict.cause, "none")
    assert both.causes == alone.causes
    assert both.rates["output_tok_s"] == 2 * alone.rates["output_tok_s"]
    assert "the mean of 2 replicas" in both.notes[0]


def test_the_flag_counts_the_threads_of_all_replicas() -> None:
    change = explain(twice(healthy(**FAULTS["few_threads"]))).changes[0]
    assert change.flag == "--num-threads 8"
    assert change.fields == {"num_threads": 8}


def test_a_core_per_replica_is_enough() -> None:
    """Seen: two replicas with a thread each on two cores, of which a second was asked for each."""
    one = msgspec.structs.replace(healthy(args={"num_threads": 1}), cores=1)
    assert not explain(twice(one)).verdict.fault


def test_threads_of_all_replicas_wait_for_cores() -> None:
    waits = [6.0, 4.0, 5.0, 5.0, 6.0, 4.0, 5.0, 5.0, 0.0]
    host = HostUse(10.0, 8, 76.0, 20.0, 0.0, 40.0, waits)
    finding = explain(twice(healthy(host=host))).verdict
    assert finding.cause == "busy_neighbour"
    assert "waited 50%" in finding.text


def test_a_stopped_replica_is_named() -> None:
    workers = [Worker(pid, 9.0, 0.0) for pid in (11, 12)]
    host = HostUse(10.0, 8, 60.0, 60.0, 0.0, 0.0, workers=workers)
    stopped = healthy(host=host, around={"stopped": 0.4, "halted": 12})
    assert "(12, replica 1) was stopped" in explain(twice(stopped)).verdict.text


def test_a_queue_beside_free_seats_is_one_replicas() -> None:
    """Seen: clients chose one of two replicas, and more seats were advised."""
    shape: dict[str, Any] = {"running": 4.0, "waiting": 8.0, "demand": 12, "in_flight": 12.0}
    one = healthy(args={"max_num_seqs": 8}, **shape)
    verdict, *_ = (both := explain(twice(one))).causes
    assert verdict.cause == "queueing"
    assert "another has free seats" in verdict.text
    assert both.changes[0].flag == "no X-data-parallel-rank in requests"
    full = explain(twice(healthy(args={"max_num_seqs": 8}, **shape | {"running": 8.0})))
    assert full.changes[0].flag.startswith("--max-num-seqs")
