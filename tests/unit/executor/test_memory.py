"""The number of KV blocks, and the refusal when there are too few."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from quire.core.errors import OutOfMemoryError
from quire.core.layers import ShortConvConfig
from quire.core.quantization import Form
from quire.executor import parts
from quire.executor.memory import (
    MemoryPlan,
    activation_bytes,
    cannot_allocate,
    expected_plan,
    longest_context,
    most_kv_blocks,
    plan_memory,
    useful_blocks,
)
from quire.executor.parts import new_runner
from quire.executor.resident import resident_bytes
from quire.models.layout import head_name, parameters
from tests.unit.executor.configs import TINY, config

BLOCK = 16 * 256
RUNTIME, WEIGHTS = 10_000, 20_000


def plan(**changes: Any) -> MemoryPlan:
    return plan_memory(config(**changes), runtime=RUNTIME, weights=WEIGHTS, kv_bytes_per_token=256)


def test_an_explicit_number_of_blocks_is_taken_as_it_is() -> None:
    """However small: requests that do not fit are refused one by one (faults.md, row 35)."""
    assert plan(num_blocks=3, kv_cache_memory_bytes=2**30).num_blocks == 3


def test_an_unloaded_engine_is_planned_with_its_draft_model() -> None:
    alone = expected_plan(config(kv_cache_memory_bytes=2**20))
    assert expected_plan(config(kv_cache_memory_bytes=2**20, draft=config())).num_blocks == (
        alone.num_blocks // 2
    )


def test_explicit_bytes_hold_as_many_blocks_as_fit() -> None:
    assert plan(kv_cache_memory_bytes=100 * BLOCK + BLOCK - 1).num_blocks == 100
    assert plan(kv_cache_memory_bytes=100 * BLOCK).kv_cache_bytes == 100 * BLOCK


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 3},
        {"kv_cache_memory_bytes": 100 * BLOCK},
        {"memory_budget_bytes": 200_000},
        {"memory_budget_bytes": 2**32},
    ],
)
def test_a_bound_that_no_plan_exceeds(changes: dict[str, int]) -> None:
    bound = most_kv_blocks(config(**changes), 256)
    assert plan(**changes).num_blocks <= bound
    exact = "memory_budget_bytes" not in changes or changes["memory_budget_bytes"] > 2**30
    assert exact == (plan(**changes).num_blocks == bound)


@pytest.mark.parametrize("extra", [0, 1, BLOCK - 1])
def test_the_budget_pays_for_everything_else_first(extra: int) -> None:
    spent = RUNTIME + WEIGHTS + activation_bytes(config())
    assert plan(memory_budget_bytes=spent + 11 * BLOCK + extra).num_blocks == 11


def test_the_printed_formula_gives_the_block_count() -> None:
    spent = RUNTIME + WEIGHTS + activation_bytes(config())
    for budget in (spent + 13 * BLOCK, 2**32):
        result = plan(memory_budget_bytes=budget)
        sum_, count = re.sub(r"\b(?!min\b)[a-z]+", "", result.formula).split("=")
        assert eval(sum_) == int(count) == result.num_blocks


def test_no_more_than_can_be_used() -> None:
    """4 sequences of 8 blocks; a quarter more where prefixes are kept."""
    assert plan(enable_prefix_caching=False).num_blocks == 32
    assert plan().num_blocks == useful_blocks(config()) == 40


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_budget_bytes": 1000}, ["budget", "weights", "--gpu-memory-utilization"]),
        ({"kv_cache_memory_bytes": 7 * BLOCK}, ["--kv-cache-memory-bytes"]),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused_with_the_table(
    changes: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(OutOfMemoryError) as error:
        plan(**changes)
    text = str(error.value)
    for word in [*words, "one sequence needs", "--max-model-len"]:
        assert word in text
    assert error.value.param == words[-1]


def test_the_advice_helps() -> None:
    with pytest.raises(OutOfMemoryError) as error:
        plan(kv_cache_memory_bytes=7 * BLOCK)
    length = int(re.findall(r"--max-model-len to (\d+)", str(error.value))[0])
    assert length == 7 * 16
    assert plan(kv_cache_memory_bytes=7 * BLOCK, max_model_len=length).num_blocks == 7


@pytest.mark.parametrize("blocks", [0, 1, 5, 7])
def test_the_longest_context_fits_and_one_more_block_does_not(blocks: int) -> None:
    def longest(**changes: Any) -> int:
        return longest_context(
            config(**changes), runtime=RUNTIME, weights=WEIGHTS, kv_bytes_per_token=256
        )

    assert longest(kv_cache_memory_bytes=blocks * BLOCK + BLOCK - 1) == 16 * blocks
    assert longest(kv_cache_memory_bytes=8 * BLOCK) == longest(num_blocks=1) == 128
    spent = RUNTIME + WEIGHTS + activation_bytes(config())
    assert longest(memory_budget_bytes=spent + blocks * BLOCK) == 16 * blocks


def test_resident_memory_is_rounded_up() -> None:
    assert resident_bytes() % (64 * 2**20) == 0


def test_a_refusal_by_the_system_names_the_flags() -> None:
    assert "--num-gpu-blocks-override" in str(cannot_allocate(plan(num_blocks=3)))


def test_only_refused_memory_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class GPUError(RuntimeError):
        pass

    GPUError.__name__ = "OutOfMemoryError"  # as torch's
    host = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    driver = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    for error, wanted in (
        (GPUError("x"), OutOfMemoryError),
        (host, OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (driver, RuntimeError),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(parts, "load_tower", Mock(side_effect=error))
            with pytest.raises(wanted) as caught:
                new_runner(config(), plan(), *[Mock()] * 3, None)
            assert (caught.value is error) == (error is driver)


PROGRAM = """
from quire import LLM
from quire.executor.memory import expected_runtime
from quire.executor.resident import resident_now
from quire.explain.fit import memory_of

with LLM(kv_cache_memory_bytes=2**23) as llm:
    config = llm.resolved.config
    parts = llm.facts["resident_bytes"]
    assert list(parts) == ["program", "weights", "plans"]
    assert 0 < parts["program"] <= expected_runtime(config), parts
    assert parts["weights"] >= llm.facts["weight_bytes"] == 10_426_880, parts
    llm.generate(["a " * 500] * 4, use_tqdm=False)
    plan, _ = memory_of(config)
    planned = plan.runtime + plan.weights + plan.activations + plan.kv_cache_bytes
    assert sum(parts.values()) < resident_now() < planned
"""


def test_a_plan_is_an_upper_bound_and_a_start_reports_its_parts() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


INT4 = Form("uint8", 4, 32, "zero")
BY_ROW = Form("int8", 8, 1 << 20)


@pytest.mark.parametrize(
    ("tokens", "form", "ops", "decoded"),
    [
        (256, INT4, "triton", True), (255, INT4, "triton", False), (256, INT4, "reference", False),
        (256, BY_ROW, "triton", False),  # which multiplies rows of its own type
        (256, replace(BY_ROW, float_activations=True), "triton", True),
    ],
)  # fmt: skip
def test_the_largest_weight_that_a_step_decodes_has_its_place(
    tokens: int, form: Form, ops: Any, decoded: bool
) -> None:
    """Of the layers' weights, and not of the head's: no step has 256 rows of logits."""
    head = head_name(TINY)
    forms = {p.name: [form] for p in parameters(TINY) if p.kind == "linear" or p.name == head}
    largest = max(p.numel for p in parameters(TINY) if p.kind == "linear" and p.name != head)
    given = {"max_tokens": tokens, "ops": ops}
    dense = activation_bytes(config(**given))
    assert activation_bytes(config(**given, weight_forms=forms)) - dense == 4 * largest * decoded


def test_the_head_is_decoded_for_as_many_sequences() -> None:
    given: dict[str, Any] = {"max_tokens": 256, "ops": "triton", "max_num_seqs": 256}
    head = next(p for p in parameters(TINY) if p.name == head_name(TINY))
    more = activation_bytes(config(**given, weight_forms={head.name: [INT4]}))
    assert more - activation_bytes(config(**given)) == 4 * head.numel


HYBRID = replace(
    TINY,
    recurrent=ShortConvConfig(width=3, channels=16),
    sublayers=(("recurrent", "mlp"), ("attention", "mlp")),
)
SLOT = 2 * 16 * 4
"""Bytes of one sequence's states: two rows of 16 numbers."""


def hybrid(kv_bytes_per_token: int = 128, model: Any = HYBRID, **changes: Any) -> MemoryPlan:
    return plan_memory(
        config(model=model, **changes),
        runtime=RUNTIME,
        weights=WEIGHTS,
        kv_bytes_per_token=kv_bytes_per_token,
    )


def test_states_for_all_sequences_and_their_snapshots() -> None:
    """Two working slots and two snapshots each, and one snapshot per 256 tokens of the cache."""
    found = hybrid()
    assert (found.states.per_request, found.states.spacing) == (2, 256)
    assert found.states.num_slots == 4 * 4 + 40 * 16 // 256
    assert found.cache_bytes == found.kv_cache_bytes + found.states.num_slots * SLOT
    assert plan().states is None


def test_states_get_at_most_a_quarter_of_the_cache() -> None:
    wide = replace(HYBRID, recurrent=ShortConvConfig(width=3, channels=128))
    found = hybrid(model=wide, kv_cache_memory_bytes=24_000)
    assert found.states.num_slots == 24_000 // 4 // (8 * SLOT) == 5
    assert found.num_blocks == (24_000 - 5 * 8 * SLOT) // (16 * 128) == 9


def test_states_alone() -> None:
    """Blocks only find states then, so they cost nothing."""
    alone = replace(HYBRID, sublayers=(("recurrent",),) * 2)
    found = hybrid(0, alone, kv_cache_memory_bytes=2 * SLOT * 6)
    assert found.states.num_slots == 6
    assert found.num_blocks >= 8
    assert found.kv_cache_bytes == 0
    with pytest.raises(OutOfMemoryError):
        hybrid(0, alone, kv_cache_memory_bytes=2 * SLOT * 4 - 1)
