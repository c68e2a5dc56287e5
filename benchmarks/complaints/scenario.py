"""A complaint, and how it is found out whether a user of Quire would have it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.bars.bar import Seen
from quire import LLM, LoRARequest, SamplingParams
from quire.bench.latency import timings
from quire.bench.serving.workload import token_prompts
from quire.checkpoint.presets import preset_config
from quire.core.outputs import RequestOutput

Unit = Literal["", "×", "%", "ms", "tokens", "blocks"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of vLLM's issues.

    Attributes:
        issue: its number there.
        complaint: what it says, in a few words.
        what: is measured.
        bound: that the median must reach, or with `at_most` must not pass.
        measure: takes the number of repetitions; or why there is nothing to measure.
        without: what of the complaint this leaves out.
    """

    issue: int
    complaint: str
    what: str
    bound: float
    measure: Callable[[int], Seen] | str
    unit: Unit = "×"
    at_most: bool = False
    without: str = ""

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def show(self, value: float) -> str:
        match self.unit:
            case "%":
                return f"{100 * value:.1f} %"
            case "×":
                return f"{value:.2f}×"
            case _:
                return f"{value:,.4g} {self.unit}".rstrip()

    @property
    def bar(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.show(self.bound)}"


def seen(values: Sequence[float], **facts: Any) -> Seen:
    """Of one number a repetition."""
    return Seen.of(values, facts)


def engine(model: str = "opt-125m", **fields: Any) -> AbstractContextManager[LLM]:
    """An engine in this process; presets have random weights, in bfloat16."""
    made_up = {"load_format": "dummy", "dtype": "bfloat16"} if preset_config(model) else {}
    return LLM(model, **(made_up | fields))


def batch(
    llm: LLM,
    count: int,
    input_len: int,
    output_len: int | Sequence[int],
    seed: int = 0,
    lora_request: LoRARequest | None = None,
) -> list[RequestOutput]:
    """So many prompts of random tokens at once, and exactly so many tokens for each, greedily."""
    prompts = token_prompts(count, input_len, llm.model_config.vocab_size, [seed, count, input_len])
    lengths = [output_len] * count if isinstance(output_len, int) else output_len
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(requests, params, use_tqdm=False, lora_request=lora_request)


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def differences(first: Sequence[RequestOutput], second: Sequence[RequestOutput]) -> int:
    """Answers that are not the same tokens."""
    return sum(a != b for a, b in zip(tokens(first), tokens(second), strict=True))


def speed(outputs: Sequence[RequestOutput], input_len: int, output_len: int) -> dict[str, float]:
    """See `bench.latency.timings`."""
    found: dict[str, float] = timings([o.metrics for o in outputs], input_len, output_len)
    return found


def rates(outputs: Sequence[RequestOutput]) -> list[float]:
    """Tokens a second of each, its first apart."""
    return [
        (len(o.outputs[0].token_ids) - 1) / (o.metrics.last_token_time - o.metrics.first_token_time)
        for o in outputs
    ]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
