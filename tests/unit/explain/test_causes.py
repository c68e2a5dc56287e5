"""Each cause is found where it is, by its figures alone, and nowhere else."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from quire.explain.analyse import explain
from quire.explain.evidence import Evidence
from quire.explain.host import HostUse
from quire.explain.text import render
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from tests.unit.explain.made import MACHINE, healthy, profile, with_window

UNBOUND = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)
"""Operations that are at no limit."""


def unbound() -> Evidence:
    return healthy(ops=UNBOUND)


def test_a_healthy_engine_has_nothing_amiss() -> None:
    report = explain(unbound())
    assert report.verdict.cause == "none"
    assert report.causes == []
    assert report.changes == []
    assert sum(report.split.values()) == pytest.approx(1.0)


def test_the_least_even_router_is_named() -> None:
    names = [f"layers.{i}.mlp.experts.gate_up" for i in range(2)]
    ops = profile(*(("moe", name, 1.0, 10.0, 40.0) for name in names)).ops
    counted = ([400, 200, 200, 0], 2000), ([300, 250, 250, 0], 3000)
    layers = [
        msgspec.structs.replace(op, expert_rows=rows, experts_used=used)
        for op, (rows, used) in zip(ops, counted, strict=True)
    ]
    report = explain(healthy(ops=msgspec.structs.replace(UNBOUND, ops=layers)))
    text = " ".join(render(report).split())
    assert "Experts: a step reads 2.5 of 4 per layer." in text
    assert "least even in layers.0.mlp.experts, where expert 0 gets 2.0 times the mean." in text
    assert "Experts" not in render(explain(unbound()))


def test_an_idle_engine_says_so() -> None:
    report = explain(healthy(parts={"idle": 8.0}, ops=UNBOUND))
    assert report.verdict.cause == "none"
    assert "80%" in report.verdict.text
    assert (
        "nothing to explain" in explain(healthy(steps=0, step_sizes=[], limits=None)).verdict.text
    )


def test_ranks_are_told_apart_by_how_long_they_waited() -> None:
    """Of the model's time one waited a fifth and the other three: the first is the slow one."""
    waits = [share * UNBOUND.model_seconds for share in (0.2, 0.6)]
    ops = msgspec.structs.replace(UNBOUND, rank_waits=waits)
    report = explain(healthy(ops=ops))
    assert report.verdict.cause == "rank_imbalance"
    assert "Rank 0 takes" in report.verdict.text
    assert report.changes[0].flag == "--num-threads 4"  # of both ranks together, as the flag counts
    even = msgspec.structs.replace(UNBOUND, rank_waits=[0.1, 0.1])
    assert explain(healthy(ops=even)).verdict.cause != "rank_imbalance"


def test_one_thread_beside_a_neighbour_gets_the_flag_that_changes_something() -> None:
    """The neighbour's advice is to leave the threads as they are; it hides nobody else's."""
    neighbour = HostUse(10.0, 4, busy=29.0, own=9.0, steal=0.0, waited=5.0)
    report = explain(healthy(args={"num_threads": 1}, ops=UNBOUND, host=neighbour))
    assert {finding.cause for finding in report.causes} >= {"busy_neighbour", "few_threads"}
    assert [change.flag for change in report.changes if "threads" in change.flag] == [
        "--num-threads 4"
    ]


FAULTS = {
    "dispatch_overhead": (
        healthy(
            args={"enforce_eager": True},
            ops=profile(("linear", "layers.0.mlp.up", 4.0, 10.0, 40.0)),
        ),
        "--no-enforce-eager",
    ),
    "idle_gaps": (
        healthy(parts={"receive": 4.0}, ops=UNBOUND),
        "--async-scheduling",
    ),
    "rank_imbalance": (
        healthy(ops=UNBOUND, ranks=[[0.005, 0.005, 0.01, 0.005]] * 9),
        "--num-threads",
    ),
    "memory_bandwidth": (
        healthy(ops=profile(("linear", "layers.0.mlp.up", 9.0, 36.0, 20.0), model_seconds=9.1)),
        "--quantization",
    ),
    "compute": (
        healthy(
            ops=profile(("linear", "layers.0.mlp.up", 9.0, 1.0, 1200.0), model_seconds=9.1),
            step_sizes=[(2048.0, 100)],
            computed_tokens=204_800,
            prompt_tokens=204_000,
        ),
        "--quantization",
    ),
    "few_threads": (
        healthy(args={"num_threads": 1}, ops=UNBOUND),
        "--num-threads 4",
    ),
    "wide_weights": (
        healthy(args={"dtype": "float32"}, ops=UNBOUND),
        "--dtype bfloat16",
    ),
    "busy_neighbour": (
        healthy(
            ops=UNBOUND,
            host=HostUse(10.0, 4, busy=39.0, own=29.0, steal=0.0, waited=12.0),
        ),
        "--num-threads 4",
    ),
    "kv_cache_too_small": (
        healthy(
            ops=UNBOUND,
            waiting=20.0,
            kv_share=0.9,
            kv_blocks=200,
            args={"num_gpu_blocks_override": 200},
        ),
        "--num-gpu-blocks-override 700",
    ),
    "preemption": (
        healthy(
            ops=UNBOUND,
            preemptions=50,
            computed_tokens=88_000,
            step_sizes=[(8.0, 900), (808.0, 100)],
            kv_share=0.9,
        ),
        "--gpu-memory-utilization",
    ),
    "prefix_misses": (
        healthy(
            ops=UNBOUND,
            args={"enable_prefix_caching": False},
            prompt_tokens=100_000,
            repeated_tokens=90_000,
            requests=100,
            computed_tokens=108_000,
            step_sizes=[(8.0, 950), (2000.0, 50)],
        ),
        "--enable-prefix-caching",
    ),
    "queueing": (
        healthy(ops=UNBOUND, args={"max_num_seqs": 8}, waiting=24.0),
        "--max-num-seqs 32",
    ),
    "tokenization": (
        healthy(parts={"idle": 7.0, "tokenize": 9.5}, ops=UNBOUND),
        "--tokenizer-pool-size 2",
    ),
    "slow_client": (
        healthy(ops=UNBOUND, slow_outputs=4000),
        None,
    ),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_is_named_with_its_flag(cause: str) -> None:
    evidence, flag = FAULTS[cause]
    report = explain(evidence)
    assert report.verdict.cause == cause, report
    if flag is None:
        assert report.changes == []
        return
    assert report.changes[0].flag.startswith(flag), report.changes
    assert 1 <= len(report.changes) <= 3
    assert report.changes[0].estimated_gain > 0.02
    assert any(word.isdigit() for word in report.verdict.text.replace("%", " ").split())


@pytest.mark.parametrize("cause", [cause for cause, (_, flag) in FAULTS.items() if flag])
def test_the_changes_are_flags_that_the_engine_takes(cause: str) -> None:
    evidence, _ = FAULTS[cause]
    names = {field.name for field in dataclasses.fields(EngineArgs)}
    for change in explain(evidence).changes:
        assert set(change.fields) <= names
        assert change.flag.removeprefix("--no-").removeprefix("--").split()[0].replace(
            "-", "_"
        ) in names | {next(iter(change.fields), "tokenizer_pool_size")}
        resolve(dataclasses.replace(evidence.args, **change.fields), MACHINE)  # type: ignore[arg-type]


def test_what_is_amiss_comes_before_what_the_machine_cannot_do() -> None:
    """One thread that saturates its bandwidth is one thread."""
    ops = profile(("linear", "layers.0.mlp.up", 9.0, 14.5, 10.0), model_seconds=9.1)
    report = explain(healthy(args={"num_threads": 1}, ops=ops))
    assert [finding.cause for finding in report.causes] == ["few_threads", "memory_bandwidth"]
    flags = [change.flag for change in report.changes]
    assert flags[:2] == ["--num-threads 4", "--quantization int8"]


def test_saturation_is_seen_without_a_profile_where_limits_are_measured() -> None:
    # 8 streams of opt-125m: 0.25 GB a step, at 40 GB/s 6 ms of the 9.7.
    report = explain(healthy())
    assert report.verdict.cause == "memory_bandwidth"
    assert any("not profiled" in note for note in report.notes)
    assert explain(healthy(limits=None)).verdict.cause == "none"


def test_a_small_model_on_one_thread_is_right() -> None:
    evidence = healthy(args={"model": "embedded", "load_format": "auto", "dtype": "float32"})
    assert evidence.config.num_threads == 1
    assert "few_threads" not in [f.cause for f in explain(evidence).causes]


def test_an_engine_is_no_neighbour_of_itself() -> None:
    host = HostUse(10.0, 4, busy=39.0, own=38.5, steal=0.0, waited=12.0)
    report = explain(healthy(ops=UNBOUND, host=host))
    assert report.verdict.cause == "none"


def test_waiting_for_a_seat_is_not_waiting_for_blocks() -> None:
    causes = [f.cause for f in explain(FAULTS["queueing"][0]).causes]
    assert "kv_cache_too_small" not in causes
    causes = [f.cause for f in explain(FAULTS["kv_cache_too_small"][0]).causes]
    assert "queueing" not in causes


def test_cached_prefixes_are_no_misses() -> None:
    evidence = FAULTS["prefix_misses"][0]
    report = explain(with_window(evidence, cached_tokens=90_000))
    assert "prefix_misses" not in [f.cause for f in report.causes]


@pytest.mark.parametrize("cause", FAULTS)
def test_estimates_stay_within_reason(cause: str) -> None:
    for change in explain(FAULTS[cause][0]).changes:
        assert 0.0 < change.estimated_gain < 20.0
