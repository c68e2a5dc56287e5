"""What a change gains follows from the window: its steps, its prompts, and the cores."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest

from quire.core.messages import CoreTimes, SchedulerStats
from quire.explain.analyse import explain
from quire.explain.causes.case import ITL, LATEST, Case, open_case
from quire.explain.estimate import Estimator
from quire.explain.evidence import QUIET, Evidence, Platform
from quire.explain.host import HostUse
from quire.explain.probe import Probe
from quire.explain.report import Change
from quire.explain.step_mix import Reached, fitted
from quire.metrics.stats import EngineStats
from tests.unit.explain.made import LIMITS, healthy, profile

SLOW: dict[str, Any] = {"steps": 400, "step_sizes": [(8.0, 400)]}
UNBOUND = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)


def beside(others: float) -> HostUse:
    """Return four CPUs of which other processes use so many."""
    return HostUse(10.0, 4, busy=20.0 + 10.0 * others, own=20.0, steal=0.0, waited=0.1)


def prompts(requests: int, **fields: Any) -> Evidence:
    """Return steps of 1,600 prompt tokens each, of so many requests."""
    steps: dict[str, Any] = {"steps": 10, "step_sizes": [(1600.0, 10)], "running": 1.0}
    tokens = {"prompt_tokens": 16_000, "computed_tokens": 16_000, "generation_tokens": requests}
    return healthy(requests=requests, **steps | tokens | fields)


def first(evidence: Evidence, cause: str) -> Change:
    """Return the first change of a cause that is named first."""
    report = explain(evidence)
    assert report.verdict.cause == cause
    return report.changes[0]


def test_a_prompt_attends_to_itself_and_not_to_those_of_its_step() -> None:
    one, forty = (Estimator(prompts(n)).model_seconds() for n in (10, 40))
    assert one > forty > 0.5 * one
    cached = Estimator(prompts(40, prompt_tokens=32_000, cached_tokens=16_000)).model_seconds()
    assert cached > forty


def test_times_of_steps_by_size_tell_rates_from_overheads() -> None:
    """Seen: a batch of five was to cost no more than one of two, and took a third longer."""
    sizes = [(8.0, 900), (30.0, 40), (700.0, 30)]
    mixed = healthy(step_sizes=sizes, steps=970, computed_tokens=29_400, prompt_tokens=21_000)
    known = Estimator(mixed)
    cost = known._cost_of(Reached(0.5, 0.4, 0.5, 2e-3, 1e-5))
    seconds = [known._seconds(cost, [step]) for step in known._steps]
    parts = mixed.window.parts | {"model": sum(seconds)}
    window = msgspec.structs.replace(
        mixed.window, parts=parts, step_seconds=[2 * s for s in seconds]
    )
    found = Estimator(msgspec.structs.replace(mixed, window=window))
    for tokens, fit in itertools.product((12.0, 300.0), found._fits):  # sizes between those seen
        step = [known._mix.of_size(1, tokens)]
        told = found._seconds(found._cost_of(fit), step)
        assert told == pytest.approx(known._seconds(cost, step), rel=0.1)


def test_a_window_has_the_times_of_its_steps_by_size() -> None:
    stats = EngineStats()
    stats.on_step(SchedulerStats(1, 0, 0, 9, 0, 0, 0, 1, 4), 1.0, CoreTimes(model=1.0, prepare=0.1))
    probe = Probe(stats)
    for steps, tokens, model in ((2, 40, 3.5), (3, 4, 3.6), (4, 4, 3.8)):
        state = SchedulerStats(1, 0, 0, 9, 0, 0, 0, steps, tokens)
        stats.on_step(state, 1.0, CoreTimes(model=model, prepare=0.1 * steps))
    stats.on_step(state, 1.0, CoreTimes(model=4.0))  # without a step
    window = probe.end().window
    assert window.step_seconds == pytest.approx([0.3, 2.5])
    assert window.step_sizes == [(4.0, 2), (40.0, 1)]
    assert window.step_rest == pytest.approx([0.2, 0.1])


def test_sequences_share_most_of_the_cores_own_work() -> None:
    """Seen: two seats of eight clients' cost 49 % of the time in the core, and 91 % were gained."""
    core = {"prepare": 2.0, "update": 1.0, "core_send": 1.0}
    case = open_case(healthy(ops=UNBOUND, parts=core, running=2.0, step_sizes=[(2.0, 1000)]))
    for whole in case.estimate.serving():
        assert whole.cost.host_seconds(8) < 1.35 * whole.cost.host_seconds(2)
    assert case.estimate.batch_gain(8.0) > 1.1
    assert case.estimate.batch_gain(2.0 + 1e-9) >= 0.0


def test_each_drawn_row_takes_its_time() -> None:
    """Seen: 24 sequences at a temperature were to take little longer than four."""
    core = {"prepare": 0.5, "sample": 2.5}
    few: dict[str, Any] = {"running": 4.0, "step_sizes": [(4.0, 1000)]}
    for whole in Estimator(healthy(parts=core, **few)).serving():
        more = whole.cost.host_seconds(24) - whole.cost.host_seconds(4)
        assert more > 20 * 2.0 / 4000


def test_one_size_of_steps_cannot_tell_what_is_slow() -> None:
    """Seen: steps of eight tokens reached half of the limits, and prompts four fifths."""
    slow, overhead = Estimator(healthy(**SLOW))._fits
    assert slow.memory < 0.9 * overhead.memory
    assert slow.step < 0.5 * overhead.step
    sizes = [(8.0, 900), (30.0, 40), (700.0, 30)]
    mixed = healthy(step_sizes=sizes, steps=970, step_seconds=[6.3, 0.5, 2.9])
    assert Estimator(mixed)._fits[0].compute == pytest.approx(
        Estimator(mixed)._fits[1].compute, rel=0.1
    )


def test_waiting_for_cores_is_no_overhead_of_a_step() -> None:
    """Seen: beside 1.8 of 2 CPUs, longer chunks were to gain 244 %, and gained nothing."""
    half = HostUse(10.0, 4, 39.0, 20.0, 0.0, 5.0, waits=[5.0, 5.0, 5.0, 5.0])
    alone, crowded = (Estimator(healthy(host=host, **SLOW))._fits[1] for host in (None, half))
    assert crowded.memory == pytest.approx(alone.memory / 2, rel=0.1)
    assert crowded.step < 0.95 * alone.step


def test_a_request_costs_the_core_more_than_a_step() -> None:
    """Seen: two requests' prompts, and their ends, took as long as ten steps without them."""
    sizes = [(8.0, 900), (108.0, 50)]
    shape: dict[str, Any] = {"step_sizes": sizes, "steps": 950, "requests": 50}
    tokens = {"computed_tokens": 12_600, "prompt_tokens": 5000, "generation_tokens": 7650}
    window = {"step_rest": [900 * 1e-4, 50 * 2e-3]}
    for found in Estimator(healthy(**shape | tokens | window)).serving():
        assert found.request_seconds > 2e-3


def test_drafts_are_no_prompts() -> None:
    """Each row of a draft attends to its sequence's context."""
    fields: dict[str, Any] = {"step_sizes": [(64.0, 1000)], "computed_tokens": 64_000}
    drafts = healthy(drafted_passes=8000, draft_tokens=56_000, kv_share=0.9, **fields)
    assert Estimator(drafts).prompt_share == 0.0
    assert Estimator(healthy(**fields)).prompt_share > 0.5


def test_few_drafts_take_little_time() -> None:
    """Seen: 718 drafts beside prompts were to cost 37 % of the time, and took 16 %."""
    slow = msgspec.structs.replace(LIMITS, flops={"float32": {4: 1e11}, "bfloat16": {4: 2e11}})
    shape: dict[str, Any] = {"limits": slow, "step_sizes": [(64.0, 1000)]}
    many = healthy(drafted_passes=8000, draft_tokens=56_000, **shape)
    sizes, prompts = [(8.7, 700), (31.3, 300)], {"prompt_tokens": 7000, "requests": 100}
    few = healthy(drafted_passes=100, draft_tokens=700, **shape | prompts | {"step_sizes": sizes})
    assert 0.5 < Estimator(many).drafts_share() < 0.97
    assert 0.0 < Estimator(few).drafts_share() < 0.1


@pytest.mark.parametrize(("waiting", "saves"), [(0.0, False), (3.0, True)])
def test_chunks_are_no_longer_than_the_prompts_at_hand(waiting: float, saves: bool) -> None:
    few = prompts(1000, step_sizes=[(32.0, 500)], steps=500, waiting=waiting, running=2.0)
    assert (Estimator(few).chunk_saving(32) > 0.0) is saves


def test_a_slow_type_is_compared_with_usual_steps() -> None:
    """Seen: float32 reached 60 % of its limit, and bfloat16 90 %."""
    reads = dict.fromkeys(("float32", "bfloat16"), LIMITS.bandwidth)
    limits = msgspec.structs.replace(LIMITS, reads=reads)
    slow = healthy(args={"dtype": "float32"}, limits=limits, **SLOW)
    alone = first(slow, "wide_weights").estimated_gain
    # Beside others, these may be what slows it.
    crowded = first(msgspec.structs.replace(slow, host=beside(1.0)), "wide_weights")
    assert crowded.estimated_gain > 0.5
    assert alone > 1.4 * crowded.estimated_gain


def test_only_operations_whose_type_changes_get_faster() -> None:
    ops = profile(
        ("linear", "layers.0.mlp.up", 4.0, 10.0, 40.0), ("logits", "lm_head", 2.0, 10.0, 40.0),
        ("paged_attention", "layers.0.attn", 2.0, 10.0, 40.0), ("add", "", 1.0, 10.0, 40.0),
        model_seconds=10.0,
    )  # fmt: skip
    one, alike = Estimator(healthy(ops=ops)), Estimator(healthy())
    for changes, share in (({"kv_cache_dtype": "int8"}, 0.2), ({"quantization": "int8"}, 0.6)):
        assert 1.0 - share < one.model_ratio(**changes) < 1.0 - share / 3
        assert one.model_ratio(**changes) != alike.model_ratio(**changes)


def test_waiting_for_the_engines_own_clients_stays() -> None:
    """Seen: int8 in place of fp8 was to gain 132 %, and gained 53 %."""
    waits = HostUse(10.0, 4, busy=20.0, own=20.0, steal=0.0, waited=2.0, waits=[0.5] * 4)
    alone = HostUse(10.0, 4, busy=20.0, own=20.0, steal=0.0, waited=0.0, waits=[0.0] * 4)
    ratios = [Estimator(healthy(host=host)).model_ratio(quantization="int8")
              for host in (waits, alone)]  # fmt: skip
    lost = 1.0 - 0.95**4  # an operation ends with the last of four threads
    assert 1.0 - ratios[0] == pytest.approx((1.0 - lost) * (1.0 - ratios[1]), rel=0.25)
    assert ratios[0] > ratios[1]


def test_ranks_that_wait_are_named_without_a_figure() -> None:
    """Seen: one process gained −45 to +60 %."""
    two = healthy(args={"tensor_parallel_size": 2}, around={"nodes": 1}, **SLOW)
    ops = msgspec.structs.replace(UNBOUND, rank_waits=[0.9, 0.9])
    waiting = msgspec.structs.replace(two, ops=ops)
    assert first(waiting, "needless_ranks").estimated_gain == 0.0
    unknown = msgspec.structs.replace(waiting, surroundings=None)  # so are the memory nodes
    assert "needless_ranks" not in {found.cause for found in explain(unknown).causes}


def test_beside_others_more_tokenizers_gain_no_figure() -> None:
    """Seen: 21 % were estimated beside 1.5 CPUs of other programs, and nothing was gained."""
    gains = [
        first(healthy(parts={"idle": 7.0, "tokenize": 9.5}, host=beside(n)), "tokenization")
        for n in (0.0, 1.5)
    ]
    assert gains[0].estimated_gain > 0.1
    assert gains[1].estimated_gain == 0.0


def test_beside_others_threads_gain_no_figure() -> None:
    """Seen beside 1.6 CPUs: 33 % gained of none."""
    args = {"num_threads": 1}
    gains = [
        first(healthy(ops=UNBOUND, args=args, host=beside(n), **SLOW), "few_threads")
        for n in (0, 1)
    ]
    assert gains[0].estimated_gain > 0.1
    assert gains[1].estimated_gain == 0.0


def test_a_quiet_machine_has_all_its_cores() -> None:
    def case(others: float) -> Case:
        return open_case(healthy(host=beside(others)))

    assert case(0.9 * QUIET).cores_of(4) == case(0.0).cores_of(4) == 4.0
    assert case(1.0).cores_of(4) < 4.0 - (1.0 - QUIET)


def test_a_neighbour_of_one_thread_is_seen_without_limits() -> None:
    """Seen: a thread that had its core for 5 % of the time counted as a whole one."""
    host = HostUse(10.0, 4, 39.0, 1.0, 0.0, 9.5, waits=[9.5])
    found = explain(healthy(args={"num_threads": 1}, limits=None, host=host))
    assert "busy_neighbour" in [finding.cause for finding in found.causes]


def test_the_front_end_needs_cores_too() -> None:
    """Seen: with 97 % of the prompts' tokens cached, the API process became the limit."""
    idle = open_case(healthy())
    busy = open_case(healthy(parts={"http": 6.0, "send": 2.0}))
    assert idle.within_cores(9.0) == 9.0
    now, after = 4 * 0.97 + 0.83, 4 * (0.97 - 0.9) + 0.83
    assert busy.within_cores(9.0) == pytest.approx(now / after - 1.0)
    assert 0.08 < busy.within_cores(0.1) < 0.1
    offline = msgspec.structs.replace(busy.evidence, offline=True)
    assert open_case(offline).within_cores(9.0) == 9.0


def test_fewer_steps_need_less_of_the_core() -> None:
    """Seen: eight seats in place of two gained 124 %, and a replay of them was cut to 49 %."""
    parts = {"prepare": 2.0, "core_send": 2.0, "http": 2.0, "send": 2.0}
    busy = open_case(healthy(parts=parts, args={"num_threads": 1}, running=2.0, waiting=6.0))
    others, cores = 0.4, 4
    assert busy.within_cores(1.2, simulated=True) == 1.2
    assert busy.within_cores(99.0, simulated=True) == pytest.approx(cores / (0.01 + others) - 1.0)
    assert busy.within_cores(99.0) < busy.within_cores(99.0, simulated=True)


def test_a_gain_is_within_the_cores() -> None:
    one = prompts(40, args={"enable_prefix_caching": False}, repeated_tokens=15_500)
    quick = first(one, "prefix_misses")
    parts = one.window.parts | {"http": 10.0, "send": 9.0}
    window = msgspec.structs.replace(one.window, parts=parts)
    slow = first(msgspec.structs.replace(one, window=window), "prefix_misses")
    assert slow.estimated_gain < 0.8 * quick.estimated_gain


def test_more_tokenizers_gain_nothing_without_a_core() -> None:
    """The cause stays: it costs more as soon as the others end."""
    slow = healthy(parts={"tokenize": 9.0, "idle": 7.0}, args={"num_threads": 4})
    alone, crowded = (
        explain(msgspec.structs.replace(slow, host=beside(others))) for others in (0.0, 3.0)
    )
    assert alone.verdict.cause == crowded.verdict.cause == "tokenization"
    assert alone.verdict.share == crowded.verdict.share
    assert alone.changes[0].estimated_gain > 0.3
    assert crowded.changes[0].estimated_gain < 0.1


def test_int8_in_place_of_fp8_gains_what_their_measured_rates_say() -> None:
    reads = {"fp8": {1: 2e9, 4: 10e9}, "int8": {1: 12e9, 4: 40e9}, "bfloat16": {4: 40e9}}
    limits = msgspec.structs.replace(LIMITS, reads=reads)
    fp8 = healthy(
        args={"quantization": "fp8"}, ops=UNBOUND, platform=Platform("avx2", "avx2"), limits=limits
    )
    change = explain(fp8).changes[0]
    assert change.flag == "--quantization int8"
    # 85 MB of fp8 and 77 MB of logits in bfloat16, and then 85 and 39 MB of int8.
    before, after = 85e6 / 10e9 + 77e6 / 40e9, 124e6 / 40e9
    saved = 0.97 * 9.0 / 9.1 * (1.0 - after / before)
    assert change.estimated_gain == pytest.approx(saved / (1.0 - saved), rel=0.25)


@pytest.mark.parametrize(("tokens", "most"), [(1000, 100), (7, 7), (-3, 1)])
def test_one_token_of_a_hundred_is_at_most_a_hundred_times_as_late(tokens: int, most: int) -> None:
    """Found by `make fuzz`: sequences that hardly ran made a gain of 10¹⁰."""
    case = open_case(healthy(computed_tokens=tokens, itl_p99=1.0, running=1e-9))
    assert case.most_gain(ITL) == max(0.0, most / LATEST - 1.0)


def test_times_that_cannot_tell_overheads_apart_are_fitted() -> None:
    """Rounding leaves a pivot of zero: files may hold absurd times."""
    found = fitted([[1e-9, 1e-8, 1e-8], [1e-4, 1e-5, 1e-10]], [1e8, 1e-8], [1, 1])
    assert min(found) >= 0.0
    assert max(found) < math.inf
