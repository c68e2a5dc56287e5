"""What-if by simulation: recorded requests on the real scheduler, with one flag changed.

Where a step takes the same time whatever it holds, the gain follows from counting steps.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from quire.explain.analyse import explain
from quire.explain.causes.case import LATEST, open_case
from quire.explain.evidence import Evidence
from quire.explain.limits import Limits
from quire.explain.report import ITL, THROUGHPUT, Change
from quire.explain.whatif import Replay, _rate, _Speed, explained
from quire.metrics.requests import RecordedRequest
from quire.metrics.stats import EngineStats
from quire.server.monitoring.watch import report_on
from quire.simulate.fleet import Outcome
from quire.simulate.workload import Workload
from tests.unit.explain.made import healthy, profile

OPS = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)
FAST = Limits("a processor", 4, {4: 26e9}, {"float32": {4: 1e15}, "bfloat16": {4: 1e15}})
TOKENS = 16


def requests(count: int, *, prompt: int = 16, apart: float = 0.0) -> list[RecordedRequest]:
    return [RecordedRequest(i * apart, prompt, 0, 1, TOKENS) for i in range(count)]


def fixed(**changes: Any) -> Evidence:
    """Eight streams in steps that take 10 ms to read weights, however many rows they have."""
    shape: dict[str, Any] = {
        "limits": FAST,
        "ops": OPS,
        "arrivals": requests(32),
        "kv_share": 0.016,
    }
    return healthy(**(shape | changes))


def change(evidence: Evidence, flag: str) -> Change:
    return next(c for c in explained(evidence).changes if c.flag.startswith(flag))


def test_twice_the_seats_for_twice_the_clients_are_twice_as_fast() -> None:
    seats = change(fixed(args={"max_num_seqs": 8}, waiting=8.0, demand=16), "--max-num-seqs 16")
    assert seats.simulated
    read = 8 * 25 * 36_864 / (0.6 * 26e9)  # seconds for the keys and values of eight more rows
    assert seats.estimated_gain == pytest.approx(2.0 * 9.7e-3 / (9.7e-3 + read) - 1.0, abs=0.04)


def test_each_pass_of_a_turn_has_its_inputs_and_samples() -> None:
    parts = {"schedule": 1.0, "update": 0.5, "core_send": 0.5, "sample": 2.0, "prepare": 0.5}
    turns = change(fixed(parts=parts), "--num-scheduler-steps 8")
    assert turns.simulated
    assert 0.1 < turns.estimated_gain < 1.0 / (1.0 - 0.2 * 7 / 8) - 1.0 + 0.02


def test_blocks_for_all_end_the_wait() -> None:
    """A sequence of 31 computed tokens has two blocks; a block is reserved for each."""
    few = {"num_gpu_blocks_override": 24, "max_model_len": 64, "max_num_seqs": 16}
    tight = fixed(
        args=few, kv_blocks=24, kv_share=0.9, kv_peak=1.0, running=11.0, waiting=5.0, demand=16,
        generation_tokens=11_000,
    )  # fmt: skip
    blocks = change(tight, "--num-gpu-blocks-override")
    assert blocks.simulated
    assert 0.2 < blocks.estimated_gain < 0.6  # at most 16 of 11 run


def test_clients_that_come_at_their_times_get_no_faster() -> None:
    rare = fixed(
        args={"max_num_seqs": 1}, parts={"idle": 4.7}, running=1.0, waiting=0.3,
        demand=4, arrivals=requests(32, apart=0.3), generation_tokens=512, seconds=10.0, steps=512,
        step_sizes=[(1.0, 512)],
    )  # fmt: skip
    report = explained(rare)
    assert report.causes[-1].cause == "queueing"
    assert not [c for c in report.changes if c.flag.startswith("--max-num-seqs")]


def test_a_smaller_chunk_ends_long_gaps() -> None:
    given = {"max_num_batched_tokens": 2048, "max_model_len": 2048}
    stalls = healthy(
        args=given, ops=OPS, itl_p50=0.01, itl_p99=1.0, computed_tokens=60_600, requests=40,
        step_sizes=[(8.0, 75), (1500.0, 40)], steps=115, generation_tokens=640,
        prompt_tokens=60_000, arrivals=requests(32, prompt=1500),
    )  # fmt: skip
    assert change(stalls, "--max-itl-stretch").simulated


@pytest.mark.parametrize("turn", [64, 16])
def test_the_latest_token_is_later_than_the_mean(turn: int) -> None:
    """No replay has the system's delays. Seen: 25 times were predicted, and 5 to 11 measured."""
    long = [RecordedRequest(0.0, 16, 0, 1, 256) for _ in range(8)]
    given: dict[str, Any] = {"in_flight": 7.9, "most_in_flight": 8, "arrivals": long}
    evidence = fixed(args={"num_scheduler_steps": turn}, itl_p50=0.5, itl_p99=0.6, **given)
    fewer = Change("", "", ITL, 0.0, {"num_scheduler_steps": 8})
    found = Replay(open_case(evidence)).gain(fewer)
    assert found.gain <= turn / 8 / LATEST
    assert found.gain <= 0.6 / (LATEST * 8 * 10e-3)


def test_requests_at_their_times_gain_what_they_wait_for() -> None:
    """Seen: a replay fell behind the arrivals, and more seats were to gain 19 % in place of 7 %."""
    given: dict[str, Any] = {"in_flight": 1.0, "most_in_flight": 8, "running": 1.0}
    rate = round(10.0 * TOKENS / 0.12)  # a replayed answer takes 0.16 s
    rare = fixed(
        args={"max_num_seqs": 1}, arrivals=requests(32, apart=0.12), generation_tokens=rate, **given
    )
    seats = Change("", "", THROUGHPUT, 0.5, {"max_num_seqs": 16})
    found = Replay(open_case(rare)).gain(seats)
    assert found.gain < 0.05


def test_no_more_is_served_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: more seats for clients that pause were to gain 71 %, and gained 11 %."""
    early = [RecordedRequest(0.0, 16, 0, 1, TOKENS) for _ in range(20)]
    came = [RecordedRequest(0.1 * (i + 1), 16, 0, 1, TOKENS) for i in range(99)]
    given: dict[str, Any] = {"generation_tokens": 1440, "in_flight": 4.0, "most_in_flight": 12}
    replay = Replay(open_case(fixed(args={"max_num_seqs": 1}, arrivals=early + came, **given)))
    speeds = iter([144.0, 300.0] * 2)
    monkeypatch.setattr(replay, "_run", lambda setting, fit: _Speed(next(speeds), 0.01))
    found = replay.gain(Change("", "", THROUGHPUT, 0.5, {"max_num_seqs": 16}))
    assert found.gain == pytest.approx(99 * TOKENS / 1440 - 1.0)


def test_a_replay_that_is_unlike_the_window_is_not_used() -> None:
    slow = fixed(args={"max_num_seqs": 8}, waiting=8.0, demand=16, generation_tokens=800)
    assert explained(slow) == explain(slow)
    assert explained(fixed(arrivals=[])) == explain(fixed(arrivals=[]))


def outcome(*times: tuple[float, float, float, int]) -> Outcome:
    """Return requests by when they were sent, their first and last tokens, and how many."""
    none = np.zeros(len(times), dtype=np.int64)
    found = Outcome(Workload(none.astype(float), none, none, none, none))
    found.sent, found.first, found.last = np.array([row[:3] for row in times]).T
    found.tokens = np.array([row[3] for row in times])
    return found


def test_answers_of_one_token_count() -> None:
    ones = outcome(*((float(i), i + 1.0, i + 1.0, 1) for i in range(8)))
    assert _rate(ones, 0) == pytest.approx(1.0)  # seven of them before the last is sent
    assert _rate(ones, 1) == pytest.approx(7 / 6)


@pytest.mark.parametrize("tokens", [200, 2000])
def test_a_short_replay_has_a_round_between_the_first_and_the_last(tokens: int) -> None:
    """Seen: with two rounds, only the pauses of the clients were counted."""
    long = [RecordedRequest(0.0, 16, 0, 1, tokens) for _ in range(8)]
    given = {"in_flight": 7.5, "most_in_flight": 8}
    load = Replay(open_case(fixed(arrivals=long, **given)))._load(caching=False)
    assert len(load) >= 3 * 8


def test_a_replay_of_too_many_steps_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"args": {"max_num_seqs": 8}, "waiting": 992.0, "demand": 1000}
    crowd = fixed(in_flight=1000.0, most_in_flight=1000, **given)
    monkeypatch.setattr("quire.explain.whatif.Replica", None)  # fails if one is made
    case = open_case(crowd)
    seats = Change("--max-num-seqs 16", "", THROUGHPUT, 0.5, {"max_num_seqs": 16})
    assert Replay(case).gain(seats) is None
    monkeypatch.setattr("quire.explain.whatif.MOST_WORK", 30_000)
    with pytest.raises(TypeError):
        Replay(case).gain(seats)


def test_few_blocks_make_a_replay_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: 195 answers of 800 tokens in 137 blocks took 96 s, and a file's 10^15 clients more."""
    monkeypatch.setattr("quire.explain.whatif.Replica", None)  # fails if one is made
    long = [RecordedRequest(0.0, 200, 0, 1, 200) for _ in range(32)]
    shape: dict[str, Any] = {"running": 16.0, "waiting": 48.0, "demand": 64, "arrivals": long}
    seats = Change("--max-num-seqs 64", "", THROUGHPUT, 0.5, {"max_num_seqs": 64})
    roomy = Replay(open_case(fixed(kv_blocks=4000, **shape)))
    with pytest.raises(TypeError):
        roomy.gain(seats)
    assert Replay(open_case(fixed(kv_blocks=137, **shape))).gain(seats) is None
    assert Replay(open_case(fixed(kv_blocks=4000, **shape | {"waiting": 1e15}))).gain(seats) is None


def test_a_change_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: two causes proposed the same blocks, and only the first had a simulated gain."""
    case = open_case(fixed(arrivals=requests(20), in_flight=8.0, most_in_flight=8))
    replay = Replay(case)
    seats = Change("--max-num-seqs 16", "", THROUGHPUT, 0.5, {"max_num_seqs": 16})
    first = replay.gain(seats)
    assert first is not None
    monkeypatch.setattr("quire.explain.whatif.Replica", None)  # fails if one is made
    assert replay.gain(seats) == first


def test_requests_at_their_times_come_as_often_as_in_the_window() -> None:
    """Neither those before the window nor a part of the window change the rate."""
    early = [RecordedRequest(0.0, 16, 0, 1, TOKENS) for _ in range(20)]
    rare = fixed(arrivals=early + requests(20, apart=0.5), in_flight=1.0, most_in_flight=8)
    for caching in (False, True):
        times = Replay(open_case(rare))._load(caching)
        apart = np.diff(times.arrivals)
        assert apart.mean() == pytest.approx(0.5, rel=0.1)
        assert apart.max() <= 1.0


def test_each_of_n_sequences_passes_a_part_of_the_front_end() -> None:
    several = [RecordedRequest(0.0, 16, 0, 4, TOKENS) for _ in range(8)]
    parts = {"tokenize": 8.0}
    front = Replay(open_case(fixed(arrivals=several, parts=parts, requests=8)))._front()
    assert front.tokenizer_seconds == pytest.approx(0.25)


def test_a_server_simulates_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.monitoring.watch.MOST_SIMULATION", 300.0)
    evidence = fixed(args={"max_num_seqs": 8}, waiting=8.0, demand=16)
    assert asyncio.run(report_on(evidence)) == explained(evidence)


def test_requests_are_recorded_with_their_lengths() -> None:
    stats = EngineStats()
    first, again = (stats.on_arrival(list(range(200))).record for _ in range(2))
    assert (first.prompt_tokens, first.shared_tokens, again.shared_tokens) == (200, 0, 192)
    assert first.arrived <= again.arrived
