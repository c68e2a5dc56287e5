"""An offline engine for benchmarks: its facts, and one call that generates."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quire.bench.floor import StepBytes, step_bytes
from quire.bench.split import Reading, read_stats
from quire.core.config import EngineConfig
from quire.core.errors import QuireError
from quire.core.lora import LoRARequest
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.models.memory import expert_bytes
from quire.resolve.arguments import EngineArgs
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.llm import LLM

TYPES = ("dtype", "quantization", "kv_cache_dtype", "isa")


@dataclass(frozen=True, slots=True)
class BenchEngine:
    """An `LLM`, and what benchmarks report about it."""

    llm: LLM
    clock: Callable[[], float] = time.monotonic

    @property
    def config(self) -> EngineConfig:
        return self.llm.resolved.config

    @property
    def types(self) -> dict[str, Any]:
        """Return the types of numbers, and the instruction set, under the names that rows use."""
        return {name: self.llm.facts[name] for name in TYPES}

    def reading(self) -> Reading:
        """Return the engine's counters after its latest step."""
        return read_stats(self.llm.stats)

    def reading_before(self) -> Reading:
        """Return the counters now, before work that begins at once: the engine is idle."""
        return self.reading().idle_until(self.clock())

    @property
    def vocab_size(self) -> int:
        return self.config.model.vocab_size

    def step_bytes(self, batch_size: int, input_len: int, output_len: int) -> StepBytes:
        """Return the bytes that a decode step of such a batch moves; see `floor.step_bytes`."""
        facts = self.llm.facts
        return step_bytes(
            self.config.model,
            dtype=facts["dtype"],
            weight_bytes=facts["weight_bytes"],
            expert_bytes=expert_bytes(self.config),
            kv_bytes_per_token=facts["kv_bytes_per_token"],
            batch_size=batch_size,
            input_len=input_len,
            output_len=output_len,
        )

    def generate(
        self, prompts: list[list[int]], output_len: int, lora_request: LoRARequest | None = None
    ) -> list[RequestMetrics]:
        """Generate exactly `output_len` greedy tokens per prompt, ignoring stop tokens.

        Raises:
            QuireError: a request gave fewer tokens.
        """
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(requests, params, use_tqdm=False, lora_request=lora_request)
        for output in outputs:
            completion = output.outputs[0]
            if len(completion.token_ids) != output_len:
                raise QuireError(
                    f"A request gave {len(completion.token_ids)} of {output_len} tokens. It ended "
                    f"with {completion.finish_reason!r} ({completion.stop_reason!r}).",
                    fix="Check that --input-len and --output-len fit into --max-model-len.",
                )
        return [output.metrics for output in outputs]

    def steps(self, prompts: list[list[int]], output_len: int) -> Iterator[tuple[int, float]]:
        """Generate as `generate` does; yield tokens and seconds of each step.

        A step runs when its item is taken. So the caller may do other work between steps.
        """
        params = SamplingParams(
            temperature=0.0, max_tokens=output_len, ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        for number, prompt in enumerate(prompts):
            self.llm.add_request(f"step {number}", {"prompt_token_ids": prompt}, params)
        while self.llm.has_unfinished_requests():
            tokens, begin = self.llm.stats.generation_tokens, self.clock()
            self.llm.step()
            yield self.llm.stats.generation_tokens - tokens, self.clock() - begin


@contextmanager
def open_engine(args: argparse.Namespace) -> Iterator[BenchEngine]:
    """Start the engine that the flags describe, and shut it down at the end."""
    from quire.frontend.llm import LLM

    llm = LLM(**asdict(EngineArgs.from_cli_args(args)))
    try:
        yield BenchEngine(llm)
    finally:
        llm.shutdown()
