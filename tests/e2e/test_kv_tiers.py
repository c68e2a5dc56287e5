"""KV blocks that leave the cache and come back: the same tokens, whatever way they went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.messages import HostTierStats
from quire.runner.kv_files import BlockFiles
from quire.runner.kv_host import CopyReport, HostKV
from quire.scheduler.tier_cost import TierCost

LENGTH = 96
SMALL: dict[str, Any] = {"num_gpu_blocks_override": 24, "block_size": 8, "max_num_seqs": 8}
"""A KV cache that holds two sequences."""


@pytest.fixture(scope="module")
def model(shared_dir: Path) -> str:
    return str(shared_dir / "models" / "tinystories-656k")


def prompts(count: int, length: int = 40) -> list[dict[str, list[int]]]:
    rng = Random(5)
    tokens = [[rng.randrange(3, 2048) for _ in range(rng.randint(8, length))] for _ in range(count)]
    return [{"prompt_token_ids": prompt} for prompt in tokens]


def sampling(count: int) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=0.8 if i % 2 else 0.0,
            seed=i,
            max_tokens=LENGTH - 40,
            ignore_eos=True,
            prompt_logprobs=1 if i % 4 == 3 else None,
        )
        for i in range(count)
    ]


def make(model: str, **flags: Any) -> LLM:
    return LLM(model=model, max_model_len=LENGTH, **flags)


def run(llm: LLM, count: int = 8) -> list[tuple[Any, ...]]:
    outputs = llm.generate(prompts(count), sampling(count), use_tqdm=False)
    return [(o.outputs[0].token_ids, o.prompt_logprobs) for o in outputs]


def host_stats(llm: LLM) -> HostTierStats:
    assert llm.stats.scheduler.host_tier is not None
    return llm.stats.scheduler.host_tier


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_preemption_changes_no_token(model: str, dtype: str, kv_cache_dtype: str) -> None:
    flags = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    with make(model, **flags) as llm:
        expected = run(llm)
    for caching in (True, False):
        for mode in ("recompute", "swap", "auto"):
            with make(
                model,
                swap_space=0.01,
                preemption_mode=mode,
                enable_prefix_caching=caching,
                **SMALL,
                **flags,
            ) as llm:
                assert run(llm) == expected
                assert llm.stats.scheduler.num_preemptions > 0
                host = host_stats(llm)
                assert (host.swapped_in > 0) == (mode == "swap") or mode == "auto"
                assert host.failed == host.num_requests_swapped == 0


@pytest.mark.parametrize(
    "pipeline",
    [{"async_scheduling": True}, {"num_scheduler_steps": 4}],
    ids=["async", "multi-step"],
)
def test_swap_beside_steps_in_flight(model: str, pipeline: dict[str, Any]) -> None:
    with make(model) as llm:
        expected = run(llm)
    with make(model, swap_space=0.01, preemption_mode="swap", **SMALL, **pipeline) as llm:
        assert run(llm) == expected
        assert host_stats(llm).swapped_in > 0


def test_copies_are_timed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(TierCost, "observe", lambda _, copies, seconds: seen.append(seconds))
    with make(model, swap_space=0.01, preemption_mode="swap", **SMALL) as llm:
        run(llm)
    assert seen
    assert min(seen) > 0


def test_a_full_swap_space_recomputes(model: str) -> None:
    with make(model) as llm:
        expected = run(llm)
    with make(model, swap_space=5e-5, preemption_mode="swap", **SMALL) as llm:
        assert run(llm) == expected
        host, scheduler = host_stats(llm), llm.stats.scheduler
        assert 0 < host.swap_preemptions < scheduler.num_preemptions


def make_offloading(model: str, folder: Path) -> LLM:
    """An engine whose prefixes are evicted at once, to memory and to files."""
    return make(
        model,
        num_gpu_blocks_override=12,
        block_size=8,
        max_num_seqs=1,
        kv_offloading_size=0.0004,
        kv_offloading_dir=str(folder),
        kv_offloading_disk_size=0.1,
    )


@pytest.fixture
def offloading(model: str, tmp_path: Path) -> Iterator[LLM]:
    with make_offloading(model, tmp_path) as llm:
        yield llm


def ask(llm: LLM, number: int) -> tuple[list[int], int]:
    """A prompt of 80 tokens: its answer, and how many tokens of the prompt were cached."""
    rng = Random(number)
    prompt = {"prompt_token_ids": [rng.randrange(3, 2048) for _ in range(80)]}
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return output.outputs[0].token_ids, output.num_cached_tokens or 0


def test_evicted_prefixes_come_back_from_memory_and_disk(offloading: LLM) -> None:
    first = [ask(offloading, number) for number in range(12)]
    assert all(cached == 0 for _, cached in first)
    assert host_stats(offloading).saved > 0
    again = [ask(offloading, number) for number in range(12)]
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]
    assert all(cached == 72 for _, cached in again)
    offloading.call("reset_prefix_cache")
    assert ask(offloading, 3) == first[3]


def worker_host(llm: LLM) -> HostKV:
    host: HostKV = llm._core.executor._worker._tiers.host  # type: ignore[attr-defined]
    return host


def worker_files(llm: LLM) -> BlockFiles:
    files = worker_host(llm).files
    files.flush()
    return files


@pytest.mark.parametrize("place", ["memory", "disk", "gone"])
def test_damage_is_noticed_and_computed_again(offloading: LLM, place: str) -> None:
    first = [ask(offloading, number) for number in range(12)]
    if place == "memory":
        worker_host(offloading).slots ^= np.int64(1)
    files = [*worker_files(offloading).folder.folder.iterdir()]
    assert files
    for path in files:
        data = path.read_bytes()
        if place == "disk":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif place == "gone":
            path.unlink()
    again = [ask(offloading, number) for number in reversed(range(12))]  # memory first
    assert [tokens for tokens, _ in reversed(again)] == [tokens for tokens, _ in first]
    assert host_stats(offloading).failed > 0
    offloading.call("check_integrity")


def test_two_engines_with_one_folder(model: str, tmp_path: Path) -> None:
    """One finds what the other computed, also after that has gone."""
    with make_offloading(model, tmp_path) as one:
        first = [ask(one, number) for number in range(12)]
        worker_files(one)
        with make_offloading(model, tmp_path) as two:
            there = [ask(two, number) for number in range(16)]
            worker_files(two)
    with make_offloading(model, tmp_path) as three:
        again = [ask(three, number) for number in range(16)]
        three.call("check_integrity")
        assert host_stats(three).failed == 0
    assert [cached for _, cached in first] == [0] * 12
    assert [cached for _, cached in there] == [72] * 12 + [0] * 4
    assert [cached for _, cached in again] == [72] * 16
    assert [tokens for tokens, _ in there[:12]] == [tokens for tokens, _ in first]
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in there]


@pytest.mark.parametrize(
    "other", [{"dtype": "bfloat16"}, {"kv_cache_dtype": "int8"}, {"block_size": 8}]
)
def test_other_settings_share_no_files(model: str, tmp_path: Path, other: dict[str, Any]) -> None:
    directory = str(tmp_path)
    with make(model, kv_offloading_dir=directory) as llm:
        ask(llm, 1)
    with make(model, kv_offloading_dir=directory, **other) as llm:
        assert ask(llm, 1)[1] == 0
        llm.call("check_integrity")
    with make(model, kv_offloading_dir=directory) as llm:
        assert ask(llm, 1)[1] == 64
    assert len(list(tmp_path.glob("quire-kv-*"))) == 2


def test_damage_to_swapped_blocks_is_noticed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(model) as llm:
        expected = run(llm)
    copy = HostKV.copy

    def damaging(self: HostKV, copies: Any, *, wait: bool) -> CopyReport:
        for slot in {load.slot for load in copies.loads}:
            self.slots[slot, slot % self.num_words] ^= 1 << (slot % 60)
        return copy(self, copies, wait=wait)

    monkeypatch.setattr(HostKV, "copy", damaging)
    with make(model, swap_space=0.01, preemption_mode="swap", **SMALL) as llm:
        assert run(llm) == expected
        assert host_stats(llm).failed > 0


@pytest.mark.parametrize(
    ("flags", "param"),
    [
        ({"swap_space": -1.0}, "swap_space"),
        ({"swap_space": 1e6}, "swap_space"),
        ({"kv_offloading_size": 1e6}, "kv_offloading_size"),
        ({"kv_offloading_size": float("inf")}, "kv_offloading_size"),
        ({"kv_offloading_dir": "d", "enable_prefix_caching": False}, "kv_offloading_dir"),
        ({"kv_offloading_dir": "d", "kv_offloading_disk_size": 1e-6}, "kv_offloading_disk_size"),
        ({"kv_offloading_dir": "d", "prefix_caching_hash_algo": "xxhash"}, "kv_offloading_dir"),
        ({"kv_offloading_size": 0.01, "kv_offloading_dir": "/dev/null/x"}, "kv_offloading_dir"),
        ({"preemption_mode": "perhaps"}, "preemption_mode"),
        ({"preemption_mode": "swap"}, "preemption_mode"),
        ({"swap_space": 1e-7}, "swap_space"),
        ({"kv_offloading_size": 0.01, "enable_prefix_caching": False}, "kv_offloading_size"),
    ],
)
def test_what_cannot_be_is_refused(model: str, flags: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(model, **flags)
    assert error.value.param == param
