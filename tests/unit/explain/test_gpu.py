"""A GPU computes the model: its limits, what the host makes it wait for, and copies."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quire.explain import cards
from quire.explain.analyse import explain
from quire.explain.cards import Card, cards_between, read_cards
from quire.explain.causes.case import open_case
from quire.explain.evidence import Evidence
from quire.explain.host import HostUse
from quire.explain.limits import card_limits
from quire.profile.nvml import Gpu
from tests.unit.explain.made import healthy, profile
from tests.unit.profile.fake_machine import GPU_ANSWERS, FakeNvml

H100 = "NVIDIA H100 80GB HBM3"
QUICK: dict[str, Any] = {"steps": 20_000, "step_sizes": [(8.0, 20_000)], "computed_tokens": 160_000}
"""Steps of 0.5 ms."""


def on_gpu(**fields: Any) -> Evidence:
    """Return the healthy engine on a GPU; one thread submits its work."""
    args = {"num_threads": 1} | fields.pop("args", {})
    made = healthy(args=args, limits=card_limits(H100), **fields)
    return msgspec.structs.replace(made, config=replace(made.config, device="cuda"))


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        (H100, 3350),
        ("NVIDIA H200", 4800),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA L4", 300),
        ("NVIDIA GeForce RTX 4090", 1008),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),
    ],
)
def test_a_card_has_the_limits_of_its_datasheet(name: str, gigabytes: int | None) -> None:
    limits = card_limits(name)
    assert (limits and limits.bandwidth_of(8)) == (gigabytes and gigabytes * 1e9)
    assert limits is None or limits.usable


def test_no_cause_of_cpus_slows_a_gpu() -> None:
    around = {"huge_pages": "never", "clock": 0.3, "allowed": 1}
    busy = HostUse(10.0, 4, busy=39.0, own=9.0, steal=0.0, waited=0.0)
    report = explain(on_gpu(around=around, host=busy, **QUICK))
    assert report.verdict.cause == "none"
    assert "The GPU's limits are those of its datasheet." in report.notes


def test_only_the_thread_that_submits_work_may_wait() -> None:
    """Other threads of the host are idle, so their short waits say nothing."""
    host = HostUse(10.0, 4, 39.0, 20.0, 0.0, 5.0, waits=[5.0, 0.0, 0.0, 0.0])
    crowded = on_gpu(args={"num_threads": 4}, host=host, steps=2000, step_sizes=[(8.0, 2000)])
    alone = msgspec.structs.replace(crowded, host=None)
    case, quiet = open_case(crowded), open_case(alone)
    assert case.waited == crowded.waited == 0.5
    assert case.estimate._fits[1].memory < 0.6 * quiet.estimate._fits[1].memory


def test_a_host_that_launches_operations_slowly_is_named() -> None:
    report = explain(on_gpu(args={"enforce_eager": True}, steps=2000, step_sizes=[(8.0, 2000)]))
    assert report.verdict.cause == "dispatch_overhead"
    assert report.changes[0].flag == "--no-enforce-eager"


def test_the_card_waits_while_the_host_schedules() -> None:
    slow = on_gpu(parts={"schedule": 1.0, "prepare": 2.0, "update": 1.0}, **QUICK)
    report = explain(slow)
    assert (report.verdict.cause, report.changes[0].flag) == ("idle_gaps", "--async-scheduling")
    assert report.verdict.share == pytest.approx(0.4)
    hidden = msgspec.structs.replace(slow, config=replace(slow.config, async_scheduling=True))
    assert explain(hidden).verdict.cause == "none"


def test_the_memory_of_the_card_is_the_limit() -> None:
    ops = profile(("linear", "layers.0.mlp.up", 9.0, 3000.0, 20.0), model_seconds=9.1)
    report = explain(on_gpu(ops=ops, **QUICK))
    assert report.verdict.cause == "memory_bandwidth"
    assert "3350 GB/s" in report.verdict.text


def test_weights_in_the_memory_of_the_host_are_copied() -> None:
    report = explain(on_gpu(args={"cpu_offload_gb": 0.1}))
    assert (report.verdict.cause, report.changes[0].flag) == ("offload_reads", "--cpu-offload-gb 0")
    assert report.verdict.share == pytest.approx(0.1 * 2**30 * 100 / 5e10, rel=0.01)


def test_only_the_thread_that_submits_waits_for_a_cpu() -> None:
    host = HostUse(10.0, 4, busy=39.0, own=9.0, steal=0.0, waited=9.0, waits=[3.0, 0.0, 0.0])
    case = open_case(on_gpu(args={"num_threads": 4}, host=host, **QUICK))
    assert case.waited == pytest.approx(0.3)
    report = explain(case.evidence)
    assert report.verdict.cause == "busy_neighbour"
    assert [change.flag for change in report.changes] == ["--num-threads 4"]  # fewer gain nothing


@pytest.mark.parametrize(
    ("card", "cause", "share", "fault"),
    [
        (Card("A", clock=0.6, hot=5.0), "hot_card", 0.97 * 0.5 * 0.4, True),
        (Card("A", clock=0.6, capped=8.0), "power_limit", 0.97 * 0.8 * 0.4, False),
        (Card("A", clock=1.0, others=0.3, neighbours=[7]), "shared_card", 0.97 * 0.3, True),
        (Card("A", clock=0.6, hot=0.4, capped=0.4), "none", None, False),
    ],
)
def test_a_card_that_is_slowed_or_shared_is_named(
    card: Card, cause: str, share: float | None, fault: bool
) -> None:
    around = {"cards": [Card("idle", clock=1.0), card]}
    verdict = explain(on_gpu(around=around, **QUICK)).verdict
    assert (verdict.cause, verdict.fault) == (cause, fault)
    assert share is None or verdict.share == pytest.approx(share)
    assert explain(healthy(around=around)).verdict.cause not in {"hot_card", "shared_card"}


def test_what_nvml_says_of_the_cards_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = GPU_ANSWERS | {
        "nvmlDeviceGetMaxClockInfo": 2_640,
        "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=3_000_000_000),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=5), SimpleNamespace(pid=8)],
        "nvmlDeviceGetProcessUtilization": [
            SimpleNamespace(pid=5, smUtil=90),
            SimpleNamespace(pid=8, smUtil=20),
            SimpleNamespace(pid=8, smUtil=30),
        ],
    }
    found = [Gpu(FakeNvml(1, GPU_ANSWERS), 0), Gpu(FakeNvml(1, answers), 0)]
    monkeypatch.setattr(cards, "gpus", lambda: found)
    [card] = read_cards([5])
    assert card == Card("Imaginary G1", 0.75, 3.0, 3.0, 0.25, [8])
    later = msgspec.structs.replace(card, hot=4.5)
    assert cards_between([card], [later]) == [msgspec.structs.replace(card, hot=1.5, capped=0.0)]
    assert cards_between([], [later])[0].hot == 0.0
    assert read_cards([6]) == []  # which of the two is not known
    found.pop()
    assert read_cards([6]) == [Card("Imaginary G1")]


def test_a_slow_nvml_does_not_hold_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def slow() -> list[Gpu]:
        assert answer.wait(10.0)
        return [Gpu(FakeNvml(1, GPU_ANSWERS), 0)]

    monkeypatch.setattr(cards, "gpus", slow)

    async def watch() -> tuple[list[Card], list[Card]]:
        reading = asyncio.create_task(cards.cards_in_thread([5]))
        await asyncio.sleep(0.0)
        assert not reading.done()  # and yet the loop runs
        answer.set()
        found = await reading
        answer.clear()
        monkeypatch.setattr(cards, "MOST_SECONDS", 0.0)
        hung = await cards.cards_in_thread([5])
        answer.set()
        return found, hung

    found, hung = asyncio.run(watch())
    assert [card.name for card in found] == ["Imaginary G1"]
    assert hung == []
