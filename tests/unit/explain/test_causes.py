"""Each cause is found where it is, by its figures alone, and nowhere else."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest

from quire.explain.analyse import Predicted, explain
from quire.explain.causes import CAUSES
from quire.explain.collect import _unkept
from quire.explain.evidence import Evidence, Platform
from quire.explain.host import HostUse, Worker
from quire.explain.report import Cause
from quire.explain.text import render
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from tests.unit.explain.made import LIMITS, MACHINE, config, healthy, profile, with_window
from tests.unit.explain.made_faults import FAULTS, SLOW, UNBOUND, drafting

PROMPTS: dict[str, Any] = {
    "steps": 1000, "step_sizes": [(8.0, 900), (1008.0, 100)], "computed_tokens": 108_000,
}  # fmt: skip
"""Steps of which a tenth has a long prompt."""


GAINS_NO_SPEED = {
    "adapter_seats", "blocked", "cold_start", "cpu_quota", "needless_ranks", "failed_writes",
    "open_files", "slow_kernels",
    "refused_requests", "too_many_threads",
}  # fmt: skip
"""Causes whose change has no figure: it ends errors, or the window cannot tell its gain."""


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


def test_more_threads_gain_nothing_while_others_take_the_cores() -> None:
    """Seen: +46 % estimated and -24 % measured, beside a process on each of the other cores."""
    crowd = HostUse(10.0, 4, busy=40.0, own=9.0, steal=0.0, waited=5.0)
    alone, beside = (
        explain(healthy(args={"num_threads": 1}, ops=UNBOUND, host=host)) for host in (None, crowd)
    )
    assert [report.verdict.cause for report in (alone, beside)] == ["few_threads"] * 2
    assert alone.changes[0].estimated_gain > 0.5
    [threads] = [c for c in beside.changes if c.fields.get("num_threads") == 4]
    assert threads.estimated_gain < 0.25


@pytest.mark.parametrize(("demand", "cause"), [(1, "few_clients"), (8, "dispatch_overhead")])
def test_steps_of_one_row_are_the_clients(demand: int, cause: str) -> None:
    """Seen: handing over took 11 % of a tiny model's step, and was named before the one client."""
    rows = float(demand)
    shape: dict[str, Any] = {"running": rows, "demand": demand, "step_sizes": [(rows, 1000)]}
    ops = profile(("linear", "layers.0.mlp.up", 8.0, 10.0, 40.0), model_seconds=8.1)
    assert explain(healthy(ops=ops, parts={"prepare": 0.5}, **shape)).verdict.cause == cause


def test_more_clients_gain_nothing_with_one_seat() -> None:
    """Seen: three times the tokens were promised to clients of a server with --max-num-seqs 1."""
    shape: dict[str, Any] = {"running": 0.9, "demand": 2, "step_sizes": [(1.0, 1000)]}
    for seats, expected in ((8, True), (1, False)):
        report = explain(healthy(args={"max_num_seqs": seats}, **shape))
        found = [each.cause for each in report.causes]
        assert ("few_clients" in found) == expected


def test_every_cause_has_a_fault() -> None:
    named = set(CAUSES)
    elsewhere = {"python_ops", "hot_card", "power_limit", "shared_card"}  # below, and in test_gpu
    shown = named - elsewhere
    assert shown == set(FAULTS)
    assert named | {"starved", "none"} == set(get_args(Cause))


def test_ops_without_a_kernel_are_named() -> None:
    ops = [msgspec.structs.replace(UNBOUND.ops[0], isa="torch", seconds=4.0)]
    report = explain(healthy(ops=msgspec.structs.replace(UNBOUND, ops=ops)))
    found = {finding.cause: finding for finding in report.causes}
    assert "linear" in found["python_ops"].text


def test_late_tokens_do_not_matter_offline() -> None:
    """Seen: `LLM`, which limits no step, was advised to; its caller waits for whole answers."""
    late, _ = FAULTS["long_prompts"]
    offline = msgspec.structs.replace(late, offline=True)
    assert "long_prompts" not in {found.cause for found in explain(offline).causes}


def test_threads_without_cores_are_named_even_if_steps_take_their_usual_time() -> None:
    report = explain(healthy(ops=UNBOUND, args={"num_threads": 16}))
    assert report.verdict.cause == "too_many_threads"


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
    assert (report.changes[0].estimated_gain > 0.02) is (cause not in GAINS_NO_SPEED)
    assert any(word.isdigit() for word in report.verdict.text.replace("%", " ").split())
    names = {field.name for field in dataclasses.fields(EngineArgs)}
    for change in report.changes:
        assert 0.0 <= change.estimated_gain < 20.0
        if not flag.startswith("--") or not change.flag.startswith("--"):
            continue  # all others must be flags that the engine takes
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


@pytest.mark.parametrize("given", [{}, {"num_threads": 1}])
def test_a_small_model_on_one_thread_is_right(given: dict[str, Any]) -> None:
    args = {"model": "embedded", "load_format": "auto", "dtype": "float32", **given}
    evidence = healthy(args=args)
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


@pytest.mark.parametrize("kv_share", [0.03, 0.5])
def test_requests_that_queue_in_bursts_are_advised_more_seats_and_not_fewer(
    kv_share: float,
) -> None:
    busy = {"running": 5.2, "waiting": 8.5, "demand": 24, "kv_share": kv_share}
    report = explain(healthy(args={"max_num_seqs": 16}, **busy))
    (flag,) = (each.flag for each in report.changes if each.flag.startswith("--max-num-seqs"))
    assert int(flag.split()[1]) == (24 if kv_share < 0.1 else 17)


@pytest.mark.parametrize("waiting", [0.6, 3.0])
def test_requests_that_wait_beside_a_small_batch_prove_a_cause(waiting: float) -> None:
    """Of a seat, or of blocks, even if no more tokens per second come of more of them."""
    prompts = {"step_sizes": [(1.0, 500), (500.0, 20)], "computed_tokens": 10_500, "steps": 520}
    crowd: dict[str, Any] = {"running": 1.0, "waiting": waiting, "demand": 4} | prompts
    seat = healthy(args={"max_num_seqs": 1}, **crowd)
    blocks = healthy(args={"num_gpu_blocks_override": 200}, kv_share=0.5, kv_peak=0.95, **crowd)
    for evidence, cause in ((seat, "queueing"), (blocks, "kv_cache_too_small")):
        report = explain(evidence, lambda _: lambda _: Predicted(0.0, 0.0))
        assert report.verdict.cause == cause
        assert report.changes[0].estimated_gain == 0.0
    served = healthy(args={"max_num_seqs": 16}, **crowd | {"running": 16.0, "demand": 19})
    assert not explain(served, lambda _: lambda _: Predicted(0.0, 0.0)).verdict.fault


def test_the_core_alone_may_have_one_cpu() -> None:
    """The API process has all of them, so it counts as many cores as threads."""
    verdict = explain(healthy(around={"allowed": 1})).verdict
    assert verdict.cause == "affinity"
    assert verdict.share > 0.3


def test_a_process_held_to_fewer_cpus_than_threads_has_an_affinity() -> None:
    """Seen: threads wait beside idle CPUs without one, too (grammars, a rank beside others)."""
    host = HostUse(10.0, 4, busy=22.0, own=21.0, steal=0.0, waited=20.0, waits=[5.0] * 4)
    held = {"online": 4, "allowed": 4, "narrowest": 1}
    verdict = explain(healthy(ops=UNBOUND, host=host, around=held)).verdict
    assert verdict.cause == "affinity"
    assert "1 of 4 CPUs" in verdict.text
    full = msgspec.structs.replace(host, busy=39.9)
    ranks = {"tensor_parallel_size": 4}
    for other in (
        healthy(ops=UNBOUND, host=full, around=held),
        healthy(ops=UNBOUND, host=host, around=held | {"narrowest": 4}),
        healthy(ops=UNBOUND, host=host, around=held, args=ranks),
        healthy(ops=UNBOUND, host=host),
    ):
        assert "affinity" not in {finding.cause for finding in explain(other).causes}


def test_waiting_for_a_core_is_no_dispatching() -> None:
    host = HostUse(10.0, 4, 40.0, 10.0, 0.0, 20.0, waits=[5.0] * 4)
    eager = healthy(args={"enforce_eager": True}, host=host, **SLOW)
    alone = healthy(args={"enforce_eager": True}, **SLOW)
    shares = [
        next(f.share for f in explain(e).causes if f.cause == "dispatch_overhead")
        for e in (eager, alone)
    ]
    assert shares[0] == pytest.approx(shares[1] - 0.5, abs=0.03)


def test_a_prefix_is_evicted_only_from_a_full_cache() -> None:
    """Seen: four requests with the same new prefix, and advice to keep evicted blocks."""
    evidence = healthy(
        **PROMPTS, requests=100, prompt_tokens=100_000, repeated_tokens=80_000, kv_held=0.5
    )
    assert explain(evidence).verdict.cause != "prefix_misses"
    verdict = explain(with_window(evidence, kv_held=0.95)).verdict
    assert verdict.cause == "prefix_misses"
    assert "evicted" in verdict.text


def test_states_are_missed_only_if_most_requests_miss_them() -> None:
    evidence = FAULTS["state_misses"][0]
    for other in (
        with_window(evidence, cached_tokens=60_000),  # most hit
        with_window(evidence, running=50.0, repeated_tokens=80_000),  # those that run at once may
        with_window(evidence, kv_held=0.95),  # then blocks are evicted, too
        FAULTS["prefix_misses"][0],
    ):
        assert "state_misses" not in [f.cause for f in explain(other).causes]


def test_the_first_stage_waits_for_the_others() -> None:
    """Its profile has not their time, which is no dispatching."""
    ops = profile(("linear", "mlp.up", 4.8, 10.0, 40.0), model_seconds=4.9)
    stages = healthy(args={"pipeline_parallel_size": 2}, ops=ops)
    assert "dispatch_overhead" not in [f.cause for f in explain(stages).causes]
    assert explain(healthy(ops=ops)).verdict.cause == "dispatch_overhead"


def test_sequences_that_load_blocks_prove_a_slow_disk() -> None:
    """The kernel may not count the time that threads wait for disks."""
    folder = {"kv_offloading_dir": "/tmp", "kv_offloading_size": 1.0}
    loads = healthy(args=folder, running=0.5, loading=1.5, loaded_blocks=58, kv_share=0.8)
    report = explain(loads)
    assert [report.verdict.cause, report.changes[0].flag] == ["slow_disk", "--kv-offloading-size 2"]
    assert report.verdict.share == 0.75


def test_cached_prefixes_are_no_misses() -> None:
    evidence = FAULTS["prefix_misses"][0]
    report = explain(with_window(evidence, cached_tokens=90_000))
    assert "prefix_misses" not in [f.cause for f in report.causes]


@pytest.mark.parametrize(
    ("around", "words"),
    [({"policy": "idle"}, "policy idle"), ({"weight": 0.06}, "6% of the usual CPU weight")],
)
def test_a_low_priority_has_three_forms(around: dict[str, Any], words: str) -> None:
    nice, _ = FAULTS["low_priority"]
    report = explain(healthy(ops=UNBOUND, host=nice.host, around=around))
    assert report.verdict.cause == "low_priority"
    assert words in report.verdict.text


def test_the_api_process_itself_is_stopped() -> None:
    verdict = explain(healthy(ops=UNBOUND, around={"paused": 0.4})).verdict
    assert verdict.cause == "stopped"
    assert "The API process" in verdict.text


def test_counts_prove_causes_without_a_step() -> None:
    """Seen: all requests were refused, or the core had no CPU: "nothing to explain"."""
    none = {"steps": 0, "step_sizes": [], "computed_tokens": 0}
    refused = explain(healthy(refused={"invalid_request": 90}, **none))
    assert refused.verdict.cause == "refused_requests"
    starved = HostUse(10.0, 4, 39.0, 1.0, 0.0, 9.5, [9.5])
    assert explain(healthy(host=starved, **none)).verdict.cause == "busy_neighbour"


def test_more_than_one_count_proves_a_cause() -> None:
    """Connections prove slow clients, GET requests polls, waiting prompts a short stretch."""
    for evidence, cause in (
        (healthy(ops=UNBOUND, around={"connections": 8, "unread": 4}), "slow_client"),
        (healthy(ops=UNBOUND, parts={"http": 2.0}, polls={"/health": 5000}), "scrapes"),
        (healthy(ops=UNBOUND, args={"max_itl_stretch": 1.01}, waiting=4.0), "small_chunks"),
    ):
        assert explain(evidence).verdict.cause == cause
    calm = healthy(
        ops=UNBOUND,
        parts={"http": 2.0},
        polls={"/health": 100},
        args={"max_itl_stretch": 1.01},
        around={"connections": 8, "unread": 1},
        ended=1,
        aborted=1,
        aborted_tokens=6000,
    )
    assert explain(calm).causes == []


@pytest.mark.parametrize(("running", "named"), [(0.1, True), (6.0, False)])
def test_requests_before_an_idle_core_prove_slow_tokenizers(running: float, named: bool) -> None:
    """Seen: a tokenizer ran 4 % of a window and waited for a core nearly all the rest."""
    host = HostUse(10.0, 4, busy=39.0, own=2.0, steal=0.0, waited=9.0, waits=[8.0] * 4)
    parts, flying = {"tokenize": 0.4, "idle": 8.0}, {"in_flight": 8.0, "most_in_flight": 8}
    report = explain(healthy(ops=UNBOUND, host=host, parts=parts, running=running, **flying))
    assert ("tokenization" in {finding.cause for finding in report.causes}) is named


@pytest.mark.parametrize(("waited", "named"), [(8.0, True), (1.0, False)])
def test_scrapes_are_judged_by_the_time_that_others_leave(waited: float, named: bool) -> None:
    """Seen: beside 1.8 of 2 busy CPUs they took a third of the loop's time, 6 % of the window."""
    host = HostUse(10.0, 4, busy=39.0, own=2.0, steal=0.0, waited=9.0, loop_waited=waited)
    report = explain(healthy(ops=UNBOUND, host=host, scrape_seconds=0.3, polls={"/metrics": 99}))
    assert ("scrapes" in {finding.cause for finding in report.causes}) is named


def test_a_stopped_stage_is_named() -> None:
    slow, _ = FAULTS["slow_stage"]
    assert slow.surroundings is not None
    around = msgspec.structs.replace(slow.surroundings, stopped=0.5, halted=8)
    verdict = explain(msgspec.structs.replace(slow, surroundings=around)).verdict
    assert verdict.cause == "stopped"
    assert "(8, stage 1)" in verdict.text


def test_even_stages_are_no_cause() -> None:
    slow, _ = FAULTS["slow_stage"]
    assert slow.host is not None
    even = [Worker(7, 4.0, 5.0), Worker(8, 4.0, 5.5), Worker(9, 0.0, 0.0)]  # the last is no stage
    host = msgspec.structs.replace(slow.host, workers=even)
    assert explain(msgspec.structs.replace(slow, host=host)).verdict.cause != "slow_stage"


def test_a_neighbour_makes_no_stage_slow() -> None:
    """Seen: two healthy stages beside a process on the core of one."""
    slow, _ = FAULTS["slow_stage"]
    assert slow.host is not None
    host = msgspec.structs.replace(slow.host, busy=38.0, waits=[5.5, 0.0])
    beside = explain(msgspec.structs.replace(slow, host=host))
    assert beside.verdict.cause == "busy_neighbour"
    assert "slow_stage" not in {finding.cause for finding in beside.causes}
    uneven = [Worker(7, 1.0, 5.5), Worker(8, 3.5, 5.0)]  # of the time that is left
    host = msgspec.structs.replace(host, workers=uneven)
    named = explain(msgspec.structs.replace(slow, host=host)).causes
    assert "slow_stage" in {finding.cause for finding in named}


@pytest.mark.parametrize(("waits", "first"), [(3.0, "few_clients"), (9.0, "busy_neighbour")])
def test_of_few_clients_and_a_neighbour_the_costlier_is_first(waits: float, first: str) -> None:
    """Seen: a process cost one client 8 %, and eight clients would have 3.9 times the tokens."""
    alone, _ = FAULTS["few_clients"]
    bound = profile(("linear", "layers.0.mlp.up", 9.0, 36.0, 20.0), model_seconds=9.1)
    host = HostUse(10.0, 4, busy=39.0, own=29.0, steal=0.0, waited=9.0, waits=[waits] * 4)
    report = explain(msgspec.structs.replace(alone, ops=bound, host=host))
    faults = {finding.cause: finding.fault for finding in report.causes}
    assert faults == {"few_clients": False, "busy_neighbour": True, "memory_bandwidth": False}
    named = list(faults)
    assert (named[0], named[2]) == (first, "memory_bandwidth")
    assert "Nothing is amiss" not in render(report)
    offline = explain(msgspec.structs.replace(alone, ops=bound, offline=True))
    assert offline.verdict.cause == "memory_bandwidth"


def test_good_drafts_are_no_cause() -> None:
    for evidence in (drafting(44000), drafting(44000, draft_seconds=0.05)):
        assert "poor_drafts" not in {cause.cause for cause in explain(evidence).causes}


def test_sequences_preempted_for_other_clients_need_seats_and_no_blocks() -> None:
    short, _ = FAULTS["preemption"]
    free = with_window(short, kv_share=0.2, kv_peak=0.3, running=8.0, waiting=2.0)
    report = explain(free)
    (cause,) = (cause for cause in report.causes if cause.cause == "preemption")
    assert "gave their seat to a client" in cause.text
    seats = free.config.scheduler.max_num_seqs
    assert f"--max-num-seqs {seats + 1}" in {each.flag for each in report.changes}


def test_as_many_seats_are_advised_as_a_step_has_tokens() -> None:
    small = {"max_num_seqs": 16, "max_num_batched_tokens": 20}
    queue = healthy(args=small, running=16.0, waiting=14.0, demand=30)
    short, _ = FAULTS["preemption"]
    window = msgspec.structs.replace(
        short.window, kv_share=0.2, kv_peak=0.3, running=16.0, waiting=14.0
    )
    taken = msgspec.structs.replace(queue, window=window)
    for evidence, flags in (
        (queue, "--max-num-seqs 30 --max-num-batched-tokens 30"),
        (taken, "--max-num-seqs 30 --max-num-batched-tokens 30"),
        (healthy(args={"max_num_seqs": 16}, running=16.0, waiting=14.0, demand=30),
         "--max-num-seqs 30"),
    ):  # fmt: skip
        (change,) = (c for c in explain(evidence).changes if "--max-num-seqs" in c.flag)
        assert change.flag == flags
        config(replace(evidence.args, **change.fields))  # it starts


def test_an_event_loop_that_writes_is_told_to_write_less() -> None:
    report = explain(healthy(parts={"idle": 4.0, "http": 4.0, "detokenize": 2.0, "send": 3.5}))
    assert report.verdict.cause == "http_overload"
    assert report.changes[0].flag == "stream=false, or several servers"


def test_rejected_drafts_are_not_taken_for_tokens_computed_again() -> None:
    window = drafting(500, preemptions=3, generation_tokens=8500).window
    assert window.recomputed_tokens == 0


def test_only_values_that_slow_products_are_a_cause() -> None:
    """Untuned kernels are what limits are measured with."""
    tuned, flag = FAULTS["untuned_kernels"]
    quick = profile(("linear", "layers.0.mlp.up", 9.0, 20.0, 40.0), model_seconds=9.1)
    for other in (
        msgspec.structs.replace(tuned, platform=Platform("avx2", "avx2")),
        msgspec.structs.replace(tuned, ops=quick),
        msgspec.structs.replace(tuned, limits=LIMITS),
    ):
        assert "untuned_kernels" not in {cause.cause for cause in explain(other).causes}
    assert flag in {change.flag for change in explain(tuned).changes}


def test_weights_that_the_cache_may_not_keep_name_its_flag() -> None:
    small = healthy(
        args={"pack_cache_bytes": 0},
        platform=Platform("avx2", "avx2", loading=9.0, unkept=15_000_000_000),
    )
    report = explain(small)
    assert report.verdict.cause == "cold_start"
    assert report.verdict.share == 0.0
    assert not report.verdict.fault
    assert report.changes[0].flag == "--pack-cache-bytes 28GiB"
    quick = msgspec.structs.replace(small, platform=Platform("avx2", "avx2", unkept=10**9))
    assert "cold_start" not in {cause.cause for cause in explain(quick).causes}


def test_weights_without_files_are_not_packed_again() -> None:
    """Seen: `GET /explain` of a dummy model looked for its files."""
    dummy = healthy().config
    assert dummy.load_format == "dummy"
    assert _unkept(dummy) == 0
    missing = replace(dummy, load_format="auto", model_path="no such folder")
    assert _unkept(missing) > 0
    assert _unkept(replace(missing, device="cuda")) == 0
    assert _unkept(replace(missing, tensor_parallel_size=2)) == 0
