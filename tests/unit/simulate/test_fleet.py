"""Replicas in virtual time: every token is counted, and times are the cost model's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.core.cost import PROFILES, Link
from quire.core.errors import ConfigError
from quire.models.cost import roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.routing.router import CacheAwareRouter, Prompt, Router
from quire.simulate.dispatch import halved, with_shared_kv
from quire.simulate.fleet import Front, Outcome, Replica, messages, simulate
from quire.simulate.router import LeastLoaded, RoundRobin, new_router
from quire.simulate.stages import modelled_stages
from quire.simulate.workload import Workload, generate
from quire.system.hardware import Hardware, detect


def replicas(count: int = 1, num_blocks: int = 2000, **flags: Any) -> list[Replica]:
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", **flags)
    config = replace(resolve(args, detect()).config, report_cache=True)
    stages = modelled_stages(config, PROFILES["l4"])
    return [Replica(config, num_blocks, stages) for _ in range(count)]


def load(count: int, rate: float = math.inf, **fields: Any) -> Workload:
    return generate(count, rate=rate, **{"input_len": 64, "output_len": 10, **fields})


def run(work: Workload, fleet: list[Replica], router: Router | None = None, **how: Any) -> Outcome:
    return simulate(work, fleet, router or LeastLoaded(len(fleet)), **how)


def test_one_request_takes_what_the_cost_model_says() -> None:
    [replica] = fleet = replicas()
    outcome = run(load(1), fleet)
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy")
    cost = roofline(resolve(args, detect()).config, PROFILES["l4"])
    prefill = cost.seconds(64, 1, 64, 64 * 65 // 2)
    decode = [cost.seconds(1, 1, 64 + i, 64 + i) for i in range(1, 10)]
    assert outcome.first[0] == pytest.approx(prefill)
    assert outcome.last[0] == pytest.approx(prefill + sum(decode))
    assert outcome.tokens.tolist() == [10]
    assert outcome.gaps.percentile(0.5) == pytest.approx(np.median(decode), rel=0.005)
    assert replica.history.steps == 10


@pytest.mark.parametrize("flags", [{}, {"async_scheduling": True}, {"num_scheduler_steps": 4}])
def test_everybody_gets_every_token(flags: dict[str, Any]) -> None:
    work = load(120, rate=40.0, lengths="lognormal", num_prefixes=4, prefix_len=96, seed=2)
    outcome = run(work, replicas(2, num_blocks=400, max_model_len=4096, **flags))
    assert (outcome.tokens == work.output_lens).all()
    assert (outcome.first >= outcome.sent).all()
    assert (outcome.last >= outcome.first).all()
    assert (outcome.sent == work.arrivals).all()
    assert outcome.cached > 0
    assert outcome.failed == 0
    assert outcome.gaps.counts.sum() <= work.output_lens.sum() - len(work)


def test_a_simulation_repeats() -> None:
    first, second = (run(load(100, rate=100.0), replicas(2)) for _ in range(2))
    assert (first.last == second.last).all()


def test_clients_send_one_request_at_a_time() -> None:
    work = load(20)
    outcome = run(work, replicas(), num_clients=4)
    for moment in outcome.sent:
        under_way = (outcome.sent <= moment) & (outcome.last > moment)
        assert under_way.sum() <= 4
    assert outcome.sent[4:].min() > 0


def test_hiding_the_hosts_part_is_faster() -> None:
    plain = run(load(64), replicas())
    ahead = run(load(64), replicas(async_scheduling=True))
    assert ahead.last.max() < plain.last.max()


def test_two_replicas_serve_more_than_one() -> None:
    one, two = (run(load(200), replicas(count)).last.max() for count in (1, 2))
    assert two < 0.75 * one


def router_of(policy: Any, fleet: list[Replica]) -> Router:
    cost = roofline(fleet[0].config, PROFILES["l4"])
    return new_router(policy, len(fleet), fleet[0].config, cost)


def test_routers() -> None:
    prompt = Prompt([], 10)
    turns, least = RoundRobin(3), LeastLoaded(3)
    for i, chosen in enumerate([0, 1, 2, 0]):
        assert turns.choose(prompt) == chosen
        turns.add(chosen, str(i), prompt)
    least.add(0, "a", prompt)
    assert least.choose(prompt) == 1
    least.add(1, "b", prompt)
    least.remove("a")
    assert least.choose(prompt) == 0
    assert isinstance(router_of("prefix-aware", replicas()), CacheAwareRouter)


def test_prefix_aware_routing_finds_more_in_the_cache() -> None:
    work = load(200, rate=200.0, num_prefixes=30, prefix_len=512, seed=5)
    hits = {}
    for policy in ("round-robin", "prefix-aware"):
        fleet = replicas(4, num_blocks=600)
        hits[policy] = run(work, fleet, router_of(policy, fleet)).cached
    assert hits["prefix-aware"] > 1.2 * hits["round-robin"]


def test_prompts_and_answers_on_replicas_of_their_own() -> None:
    """Each token comes once, answers read the prompts' blocks, and all of these come back."""
    args = EngineArgs("qwen3-0.6b", load_format="dummy", prefill_replicas=1, decode_replicas=2)
    base = resolve(args, Hardware(4, 2**35, 2**35)).config
    base = replace(base, report_cache=True, num_blocks=300)
    machine = PROFILES["epyc-9654"].part(8)
    cost, stages = roofline(base, machine), modelled_stages(base, machine)
    fleet = [Replica(config, 300, stages) for config in with_shared_kv(base, 3)]
    work = load(60, rate=30.0, input_len=600, num_prefixes=2, prefix_len=64, seed=3)
    router = CacheAwareRouter(3, cost, block_size=base.block_size, max_num_seqs=8)
    sender = halved(fleet, router, messages(work), cost)
    outcome = simulate(work, fleet, dispatch=sender)
    assert (outcome.tokens == work.output_lens).all()
    assert (outcome.first > outcome.sent).all()
    assert (outcome.last >= outcome.first).all()
    assert outcome.cached < 60 * 600  # of prompts, where they are computed
    hits = sum(replica._core.scheduler.kv.prefix_hits for replica in fleet[1:])
    assert hits >= 60 * (600 // 16 * 16)
    assert min(replica.history.steps for replica in fleet) > 10
    assert (len(sender.ledger), len(sender.waiting)) == (0, 0)
    assert sender.ledger.num_lent >= 60 * (600 // 16)
    for replica in fleet:
        replica.check_integrity()


def test_halves_need_shared_memory() -> None:
    args = EngineArgs("qwen3-0.6b", load_format="dummy", prefill_replicas=1, decode_replicas=1)
    base = resolve(args, Hardware(4, 2**35, 2**35)).config
    assert base.transfer is not None
    base = replace(base, transfer=replace(base.transfer, shares_memory=False), num_blocks=300)
    fleet = [Replica(each, 300, []) for each in with_shared_kv(base, 2)]
    cost = roofline(base, PROFILES["l4"])
    with pytest.raises(ConfigError, match="lend blocks in shared memory"):
        halved(fleet, None, messages(load(1)), cost)
    alike = replicas(2)
    assert halved(alike, None, messages(load(1)), cost) is None


def test_a_part_of_a_machine() -> None:
    whole = PROFILES["epyc-9654"]
    part = whole.part(4)
    assert part.bytes_per_second == whole.bytes_per_second / 4
    assert part.flops_per_second["int8"] == whole.flops_per_second["int8"] / 4
    assert part.memory_bytes == whole.memory_bytes // 4
    assert part.overhead_seconds == whole.overhead_seconds


def test_a_request_that_can_never_fit_is_refused() -> None:
    outcome = run(replace(load(1), input_lens=np.array([900])), replicas(num_blocks=20))
    assert outcome.failed == 1
    assert np.isnan(outcome.first[0])


def test_blocks_are_those_that_fit_the_hardware() -> None:
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", max_model_len=4096)
    config = resolve(args, Hardware(2, 4 * 10**9, 4 * 10**9)).config
    replica = Replica.on(config, PROFILES["l4"])
    left = config.memory_budget_bytes - replica.num_blocks * config.block_size * 114_688
    assert 1.19e9 < left < 1.7e9  # weights and activations


def staged(work: Workload, stages: int, **flags: Any) -> tuple[Outcome, Replica]:
    """The outcome on so many machines, each with one stage of an 8B model."""
    args = EngineArgs(
        "llama-3.1-8b", load_format="dummy", nnodes=stages, pipeline_parallel_size=stages, **flags
    )
    config = resolve(args, Hardware(96, 384 * 10**9, 384 * 10**9)).config
    replica = Replica.on(config, PROFILES["epyc-9654"])
    return run(work, [replica]), replica


def test_stages_of_two_machines_are_idle_for_less_than_a_tenth() -> None:
    work = load(400, input_len=64, output_len=32)
    outcome, replica = staged(work, 2, max_num_seqs=64, max_model_len=4096)
    assert (outcome.tokens == 32).all()
    assert 0.0 < replica.idle_share < 0.10
    alone, _ = staged(work, 1, max_num_seqs=64, max_model_len=4096)
    assert 1.7 < alone.last.max() / outcome.last.max() < 2.0


def test_a_long_prompt_scales_over_four_machines() -> None:
    work = load(1, input_len=131_000, output_len=2)
    one, four = (staged(work, count, max_model_len=131_072)[0].first[0] for count in (1, 4))
    assert 0.85 < one / four / 4 < 1.0


def test_a_slow_network_delays_every_stage_but_the_first() -> None:
    args = EngineArgs("qwen3-0.6b", load_format="dummy", nnodes=2, pipeline_parallel_size=2)
    config = resolve(args, detect()).config
    slow = replace(PROFILES["l4"], link=Link(2 * 1024 * 100, 0.5))
    first, last = modelled_stages(config, slow)
    assert (first.link_seconds, first.row_seconds) == (0.0, 0.0)
    assert (last.link_seconds, last.row_seconds) == (0.5, 0.01)
    times = [
        run(load(1, output_len=2), [Replica(config, 2000, modelled_stages(config, hardware))])
        for hardware in (PROFILES["l4"], slow)
    ]
    assert times[1].last[0] - times[0].last[0] == pytest.approx(2 * 0.5 + 65 * 0.01, rel=0.01)


def test_requests_pass_tokenizers_and_come_when_their_clients_have_an_answer() -> None:
    def seconds(**way: Any) -> float:
        return float(run(load(40), replicas(), num_clients=4, front=Front(**way)).last.max())

    alone = seconds()
    one, two = (seconds(tokenizers=n, tokenizer_seconds=1.0) for n in (1, 2))
    assert one == pytest.approx(40.0, abs=alone + 1.0)
    assert two == pytest.approx(20.0, abs=alone + 1.0)
    assert seconds(client_seconds=1.0) == pytest.approx(9.0 + alone, abs=1.0)
