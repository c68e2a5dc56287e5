"""Each architecture with its prompt computed in one process and its answer in another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from quire.core.kv_sharing import SharedKV
from quire.core.messages import StepOutputs
from quire.core.options import KVTransfer
from quire.core.request import FinishReason
from quire.parallel.shared_memory import SharedFile
from tests.golden.handoff import FarSide, Side, promised
from tests.golden.tiny_models import (
    FEW_KINDS,
    RECURRENT_MODELS,
    TINY_MODELS,
    make_tiny,
    of_each_kind,
)
from tests.golden.transformers_oracle import NUM_TOKENS, Golden
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def other() -> Iterator[Executor]:
    """Another process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def hand_over(
    other: Executor, model: Path, folder: Path, prompt: list[int]
) -> tuple[list[int], Side]:
    producer = FarSide(other, model, folder, "kv_producer")
    first = producer.answer(prompt, 1, KVTransfer(hands_over=True))
    producer.close()
    assert len(promised(first).promised) == len(prompt) // 8
    consumer = Side(model, folder, "kv_consumer")
    answer = consumer.answer(prompt, NUM_TOKENS, promised(first))
    assert answer.new_token_ids[0] == first.new_token_ids[0]
    return answer.new_token_ids, consumer


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("golden", of_each_kind(kinds=FEW_KINDS), indirect=True)
def test_same_answer(golden: tuple[str, Path, Golden], tmp_path: Path, other: Executor) -> None:
    _, model, expected = golden
    answer, consumer = hand_over(other, model, tmp_path, expected.prompt)
    assert answer == expected.output
    stats = consumer.core.scheduler.stats().host_tier
    window = consumer.core.scheduler.kv.window
    assert stats.loaded == (len(expected.prompt) - 1) // 8 or window is not None
    assert stats.loaded > 0
    assert (stats.failed, stats.saved) == (0, 0)  # a consumer writes nothing


@pytest.mark.parametrize("name", of_each_kind(RECURRENT_MODELS, kinds=frozenset({"lfm2"})))
def test_same_answer_of_recurrent_layers(name: str, tmp_path: Path, other: Executor) -> None:
    """The state after the prompt's last whole block is handed over with the blocks."""
    model, prompt = tmp_path / "model", list(range(3, 48))
    make_tiny(name, 0, model)
    whole = Side(model, tmp_path / "alone", "kv_both")
    expected = whole.answer(prompt, NUM_TOKENS, KVTransfer()).new_token_ids
    whole.core.shutdown()
    answer, consumer = hand_over(other, model, tmp_path / "shared", prompt)
    assert answer == expected
    tier = consumer.core.scheduler.stats().host_tier
    assert (tier.loaded, tier.failed, tier.saved) == (len(prompt) // 8, 0, 0)
    consumer.core.shutdown()


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("golden", of_each_kind(kinds=FEW_KINDS), indirect=True)
def test_same_answer_from_lent_blocks(
    golden: tuple[str, Path, Golden], tmp_path: Path, other: Executor
) -> None:
    _, model, expected = golden
    file = SharedFile()
    shared = SharedKV(file.path, 64, 0, 2)
    consumer = Side(model, tmp_path, "kv_both", replace(shared, replica=1))
    if consumer.core.config.model.recurrent is not None:
        file.close()
        return  # replicas lend no states, and hand over in a folder
    producer = FarSide(other, model, tmp_path, "kv_both", shared)
    file.close()
    lent = producer.answer(expected.prompt, 1, KVTransfer(hands_over=True)).lent
    answer = consumer.answer(expected.prompt, NUM_TOKENS, KVTransfer(lent=lent))
    assert answer.new_token_ids == expected.output
    assert consumer.core.scheduler.kv.prefix_hits >= 8 * ((len(expected.prompt) - 1) // 8) > 0
    assert sorted(consumer.returned) == lent.blocks
    assert producer.take_back(consumer.returned) == (len(lent.blocks), 0)


def test_same_answer_from_copies_of_lent_blocks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks return with the first token, and may be overwritten then."""
    file, prompt = SharedFile(), list(range(3, 60))
    shared = SharedKV(file.path, 64, 0, 2)
    producer, consumer = (
        Side(model, tmp_path, "kv_both", replace(shared, replica=rank)) for rank in (0, 1)
    )
    file.close()
    expected = producer.answer(prompt, 6, KVTransfer()).new_token_ids
    lent = producer.answer(prompt, 1, KVTransfer(hands_over=True)).lent
    whole_step, came = consumer.core.step, list[int]()

    def step() -> StepOutputs | None:
        found = whole_step()
        for output in found.each() if found else ():
            came.extend(output.new_token_ids)
        if found and found.returned:
            assert len(came) == 1
            for cache in producer.core.executor._worker._runner.kv_caches:  # type: ignore[attr-defined]
                for tensor in cache.tensors:
                    tensor[found.returned] = 99.0
        return found

    monkeypatch.setattr(consumer.core, "step", step)
    copied = structs.replace(lent, copied=True)
    assert consumer.answer(prompt, 6, KVTransfer(lent=copied)).new_token_ids == expected
    assert sorted(consumer.returned) == lent.blocks


@pytest.fixture
def model(made: Any) -> Path:
    folder: Path = made(next(iter(TINY_MODELS)))[0]
    return folder


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("damage", ["gone", "altered"])
def test_lost_blocks(model: Path, tmp_path: Path, policy: str, damage: str) -> None:
    prompt = list(range(3, 60))
    producer = Side(model, tmp_path, "kv_producer")
    expected = producer.answer(prompt, 6, KVTransfer()).new_token_ids
    first = producer.answer(prompt, 1, KVTransfer(hands_over=True))
    producer.core.shutdown()
    for path in tmp_path.glob("quire-kv-*/*"):
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"\1")
    consumer = Side(model, tmp_path, "kv_consumer", kv_load_failure_policy=policy)
    answer = consumer.answer(prompt, 6, promised(first))
    if policy == "fail":
        assert answer.finish_reason is FinishReason.ERROR
        assert "KV blocks of the prompt" in str(answer.stop_reason)
        assert answer.new_token_ids == []
    else:
        assert answer.new_token_ids == expected
    stats = consumer.core.scheduler.stats().host_tier
    assert (stats.failed > 0) == (damage == "altered")
    # Another request gets its answer under both policies.
    assert consumer.answer(prompt, 6, KVTransfer()).new_token_ids == expected


def test_blocks_come_by_tcp(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two sides share no folder."""
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", "k" * 32)
    prompt = list(range(3, 60))
    port = free_port()
    producer = Side(model, tmp_path / "one", "kv_producer", kv_port=port)
    expected = producer.answer(prompt, 6, KVTransfer()).new_token_ids
    first = producer.answer(prompt, 1, KVTransfer(hands_over=True))
    consumer = Side(model, tmp_path / "two", "kv_consumer", kv_port=port)
    assert consumer.answer(prompt, 6, promised(first)).new_token_ids == expected
    stats = consumer.core.scheduler.stats().host_tier
    assert (stats.loaded, stats.failed) == (7, 0)
    producer.core.shutdown()
    consumer.core.call("reset_prefix_cache", [])
    assert consumer.answer(prompt, 6, promised(first)).new_token_ids == expected
    stats = consumer.core.scheduler.stats().host_tier
    assert stats.failed > 0
    consumer.core.shutdown()


def test_foreign_blocks_are_not_used(model: Path, tmp_path: Path) -> None:
    """The blocks that a request names do not matter, only its tokens do."""
    producer = Side(model, tmp_path, "kv_producer")
    other = producer.answer(list(range(50, 3, -1)), 1, KVTransfer(hands_over=True))
    prompt = list(range(3, 60))
    expected = producer.answer(prompt, 6, KVTransfer()).new_token_ids
    consumer = Side(model, tmp_path / "empty", "kv_consumer")
    assert consumer.answer(prompt, 6, promised(other)).new_token_ids == expected
    producer.core.shutdown()


@pytest.mark.parametrize("rounds", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_either_side_may_be_killed_at_any_moment(model: Path, tmp_path: Path, rounds: int) -> None:
    command = [sys.executable, "-m", "tests.golden.handoff_kills", model, tmp_path, str(rounds)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(run.stdout)
    assert found["killed"] == rounds
    assert found["wrong"] == 0
    assert found["answers"] == rounds * found["prompts"]
