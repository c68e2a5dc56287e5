"""Offline engines with something wrong, as `benchmarks/explain_faults.py --save` watched them.

Those in `served` are from `benchmarks/explain_served.py`, on a machine with other load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.explain.analyse import explain
from quire.explain.evidence import load
from quire.explain.text import render

FILES = Path(__file__).parent / "faults"
CAUSES = {
    "dispatch": ("dispatch_overhead", "--no-enforce-eager"),
    "bandwidth": ("memory_bandwidth", "--quantization int8"),
    "gaps": ("idle_gaps", "--async-scheduling"),
    "rank": ("rank_imbalance", "--num-threads"),
    "kv": ("kv_cache_too_small", "--num-gpu-blocks-override"),
    "prefix": ("prefix_misses", "--enable-prefix-caching"),
    "thread": ("few_threads", "--num-threads 2"),
    "float32": ("wide_weights", "--dtype bfloat16"),
    "neighbour": ("busy_neighbour", "--num-threads"),
    "drafter": ("poor_drafts", "without --speculative-config"),
    "tokenizer": ("tokenization", "--tokenizer-pool-size 2"),
}


SERVED = {
    "choices": ("structures",),
    "chunks": ("small_chunks",),
    "compilation": ("structures",),
    "core_cpu": ("affinity",),
    "core_quota": ("cpu_quota",),
    "dev_mode": ("python_debugging",),
    "drafter": ("poor_drafts",),
    "eager": ("dispatch_overhead",),
    "edits": ("token_edits",),
    "few_states": ("state_misses",),
    "few_threads": ("few_threads",),
    "files": ("open_files",),
    "first_line": ("shifted_prefixes",),
    "float32": ("wide_weights",),
    "float_seats": ("queueing", "wide_weights"),
    "fp8": ("decoded_weights",),
    "frozen": ("stopped",),
    "full_disk": ("failed_writes",),
    "grammar": ("structures",),
    "http": ("http_overload",),
    "http_starved": ("http_overload",),
    "kv_float": ("wide_weights", "kv_cache_too_small"),
    "leaving": ("aborted_requests",),
    "limit": ("compute",),
    "logprobs": ("logprobs",),
    "lora": ("adapter_seats",),
    "low_priority": ("low_priority",),
    "low_weight": ("low_priority",),
    "many_choices": ("many_choices",),
    "many_steps": ("long_turns",),
    "mistuned": ("untuned_kernels",),
    "neighbours": ("busy_neighbour",),
    "no_cache": ("prefix_misses",),
    "one_cpu": ("affinity",),
    "one_seat": ("queueing",),
    "penalties": ("penalties",),
    "polls": ("scrapes",),
    "preemption": ("preemption", "kv_cache_too_small"),
    "prompt_logprobs": ("prompt_logprobs",),
    "quota": ("cpu_quota",),
    "ranks": ("needless_ranks",),
    "refused_all": ("refused_requests",),
    "salt": ("salted_prefixes",),
    "scrapes": ("scrapes",),
    "seats": ("queueing",),
    "short_context": ("refused_requests",),
    "slow_disk": ("slow_disk",),
    "slow_link": ("slow_link",),
    "slow_rank": ("needless_ranks", "rank_imbalance"),
    "slow_reader": ("slow_client",),
    "small_pages": ("huge_pages_off",),
    "stopped": ("stopped",),
    "stopped_front": ("stopped",),
    "stopped_replica": ("stopped",),
    "stretch": ("small_chunks",),
    "template": ("tokenization",),
    "thread_no_cache": ("prefix_misses", "few_threads"),
    "threads": ("too_many_threads",),
    "timestamp": ("shifted_prefixes",),
    "tiny_kv": ("kv_cache_too_small",),
    "tls": ("tls",),
    "tokenizer": ("tokenization",),
    "traced": ("traced",),
    "uneven_replicas": ("busy_neighbour",),
    "unkept": ("cold_start",),
    "unmet_stop": ("unmet_stops",),
    "wide_adapter": ("adapters",),
}


def test_all_are_here() -> None:
    assert {file.stem for file in FILES.glob("*.json")} == set(CAUSES)
    assert {file.stem for file in (FILES / "served").glob("*.json")} == set(SERVED)


@pytest.mark.parametrize("fault", SERVED)
def test_other_load_hides_no_cause(fault: str) -> None:
    """A neighbour used a core or more in nearly all of these windows; it is named, but later."""
    report = explain(load(FILES / "served" / f"{fault}.json"))
    named = tuple(finding.cause for finding in report.causes)
    assert named[: len(SERVED[fault])] == SERVED[fault]


@pytest.mark.parametrize("fault", CAUSES)
def test_a_fault_that_was_seen_is_named_with_its_flag(fault: str) -> None:
    report = explain(load(FILES / f"{fault}.json"))
    cause, flag = CAUSES[fault]
    assert report.verdict.cause == cause
    assert report.changes[0].flag.startswith(flag)
    assert report.limits.source == "measured"
    assert cause in render(report)


@pytest.mark.parametrize("fault", CAUSES)
def test_its_time_is_all_accounted_for(fault: str) -> None:
    evidence = load(FILES / f"{fault}.json")
    core = ("receive", "schedule", "prepare", "model", "sample", "update", "core_send", "idle")
    names = (*core, "tokenize", "detokenize") if evidence.offline else core
    assert evidence.window.share(*names) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("fault", CAUSES)
def test_operations_stay_within_their_limits(fault: str) -> None:
    """A roofline that operations pass would say that their bytes or the limits are wrong."""
    report = explain(load(FILES / f"{fault}.json"))
    total = sum(line.share for line in report.ops)
    assert total == pytest.approx(1.0)
    reached = sum(line.share * (line.of_limit or 0.0) for line in report.ops)
    assert 0.1 < reached < 1.1
