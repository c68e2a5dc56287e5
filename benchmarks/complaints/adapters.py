"""Complaints about adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.bars.bar import Seen
from benchmarks.complaints.scenario import Scenario, batch, engine, median, seen, speed
from quire import LLM, LoRARequest
from quire.bench.adapters import random_adapter

RANK = 16
LENGTHS = (64, 1900)
"""The model's context ends before 4k."""


def _tpot(llm: LLM, input_len: int, seed: int, adapter: LoRARequest | None = None) -> float:
    outputs = batch(llm, 1, input_len, 32, seed, adapter)
    return speed(outputs, input_len, 32)["tpot_ms"]


def used(repetitions: int) -> Seen:
    """10062: time a token with an adapter over that without, in turns."""
    with _adapted() as (llm, adapter):
        return seen(_ratios(llm, adapter, 64, 3 * repetitions))


@contextmanager
def _adapted() -> Iterator[tuple[LLM, LoRARequest]]:
    fields = {"enable_lora": True, "max_lora_rank": RANK, "enable_prefix_caching": False}
    with engine(**fields) as llm, random_adapter(llm.model_config, RANK) as adapter:
        yield llm, adapter


def _ratios(llm: LLM, adapter: LoRARequest, input_len: int, rounds: int) -> list[float]:
    found = []
    _tpot(llm, input_len, 0, adapter)
    for seed in range(1, rounds + 1):
        turns = (adapter, None) if seed % 2 else (None, adapter)
        took = {turn is None: _tpot(llm, input_len, seed, turn) for turn in turns}
        found.append(took[False] / took[True])
    return found


def unused(repetitions: int) -> Seen:
    """10062: the same of an adapter that is served and not asked for."""
    fields = {"enable_prefix_caching": False}
    served = {"enable_lora": True, "max_lora_rank": RANK}
    with ExitStack() as stack:
        plain = stack.enter_context(engine(**fields))
        beside = stack.enter_context(engine(**fields, **served))
        adapter = stack.enter_context(random_adapter(beside.model_config, RANK))
        _tpot(beside, 64, 0, adapter)
        _tpot(plain, 64, 0)
        found = []
        for seed in range(1, 3 * repetitions + 1):
            turns = (plain, beside) if seed % 2 else (beside, plain)
            took = {id(llm): _tpot(llm, 64, seed) for llm in turns}
            found.append(took[id(beside)] / took[id(plain)])
    return seen(found)


def long_inputs(repetitions: int) -> Seen:
    """11317: how far apart the ratio is at short and at long prompts."""
    with _adapted() as (llm, adapter):
        ratios = [median(_ratios(llm, adapter, n, 3 * repetitions)) for n in LENGTHS]
    return seen([abs(ratios[1] - ratios[0])], ratios=ratios)


SCENARIOS = (
    Scenario(
        10062, "one LoRA adapter slows everything", "time a token, rank 16 / none", 1.15, used,
        at_most=True,
    ),
    Scenario(
        10062, "one LoRA adapter slows everything", "time a token, an unused one served / none",
        1.02, unused, at_most=True,
    ),
    Scenario(
        11317, "LoRA with long input slows", "the ratio at 64 and at 1,900 tokens, apart by", 0.05,
        long_inputs, "%", at_most=True,
    ),
)  # fmt: skip
