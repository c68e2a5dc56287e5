"""A model without weights: bytes for tokens, and each token is the one after the last.

"a" is answered "bcd…z", then the end of the sequence. Any other byte b is followed by b + 1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from quire.checkpoint.source import ModelSource
from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import EngineConfig, ModelConfig, SchedulerConfig
from quire.core.messages import Ready, StepOutputs, TokenLogprobs
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.engine.core import EngineCore
from quire.executor.base import Executor
from quire.frontend.input.input_processor import InputProcessor, ProcessedRequest
from quire.frontend.output.output_processor import OutputProcessor, ProcessedStep
from quire.frontend.output.tracing import RequestTracer
from quire.metrics.stats import EngineStats
from quire.resolve.engine import Resolved
from quire.text.grammar import checked
from quire.text.tokenizers.dummy import DummyTokenizer
from quire.text.tokenizers.vocabulary import byte_tokenizer

EOS = 257
VOCAB_SIZE = 258
NUM_BLOCKS = 64
BLOCK_SIZE = 8


class ByteTokenizer(DummyTokenizer):
    """Token i is byte i; 256 and 257 are <s> and </s>."""

    bos_token_id = 256  # type: ignore[assignment]
    eos_token_id = EOS  # type: ignore[assignment]
    all_special_ids = frozenset((256, EOS))

    def __init__(self) -> None:
        super().__init__(VOCAB_SIZE)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else (b"<s>", b"</s>")[token_id - 256]


def follow(token: int) -> int:
    """The token that the model says after `token`."""
    return EOS if token == ord("z") else (token + 1) % 256


class NamedOutputs(OutputProcessor):
    """An output processor whose core calls sequences by their callers' names: "r", "r_0" …"""

    def __init__(self, stats: EngineStats | None = None, tracer: RequestTracer | None = None):
        super().__init__(ByteTokenizer(), stats or EngineStats(), tracer)
        self.ids: dict[str, str] = {}

    def add(self, request: ProcessedRequest) -> None:
        names = [child.request_id for child in request.children]
        super().add(request)
        self.ids.update(zip(names, [c.request_id for c in request.children], strict=True))

    def process(self, step: StepOutputs) -> ProcessedStep:
        for said in [*step.outputs, *step.events]:
            said.request_id = self.ids.get(said.request_id, said.request_id)
        result = super().process(step)
        result.aborts = self._names(result.aborts)
        return result

    def abort(
        self, request_id: str, now: float, error: str | None = None
    ) -> tuple[list[str], RequestOutput | None]:
        ids, output = super().abort(request_id, now, error)
        return self._names(ids), output

    def _names(self, ids: list[str]) -> list[str]:
        names = {number: name for name, number in self.ids.items()}
        return [names.get(number, number) for number in ids]


class EchoExecutor(Executor):
    """Computes `follow`; a step takes `seconds`."""

    phases = {"load": 0.0}  # noqa: RUF012
    facts = {"device": "none"}  # noqa: RUF012
    num_blocks = NUM_BLOCKS

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.tokens: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        time.sleep(self._seconds)
        for request_id in batch.removed:
            self.tokens.pop(request_id, None)  # those of a failed step are not here
        for new in batch.new_sequences:
            self.tokens[new.request_id] = list(new.token_ids)
            self.params[new.request_id] = new.sampling_params
        output = ModelOutput(token_columns([]))
        sampled: list[list[int]] = []
        for i, request_id in enumerate(batch.request_ids):
            tokens, params = self.tokens[request_id], self.params[request_id]
            start = int(batch.num_computed_tokens[i])
            end = start + int(batch.num_scheduled_tokens[i])
            if params.prompt_logprobs is not None:
                known = tokens[start + 1 : end + 1]
                output.prompt_logprobs[request_id] = [_logprobs(t) for t in known]
            if end < len(tokens):
                sampled.append([])
                continue
            tokens.append(follow(tokens[-1]))
            sampled.append([tokens[-1]])
            if params.logprobs is not None:
                output.logprobs[request_id] = [_logprobs(tokens[-1])]
        output.sampled_token_ids = token_columns(sampled)
        return output


def _logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs([token, token, ord("!")], [-0.5, -0.5, -2.0], 1)


def engine_config(name: str = "echo", **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "model_path": name,
        "model": ModelConfig("echo", VOCAB_SIZE, 8, 8, 1, 1, 1, 8, 256, eos_token_ids=(EOS,)),
        "load_format": "dummy",
        "dtype": "float32",
        "quantization": None,
        "kv_cache_dtype": "float32",
        "seed": 0,
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
        "kv_cache_memory_bytes": None,
        "memory_budget_bytes": 1,
        "enable_prefix_caching": True,
        "scheduler": SchedulerConfig(256, 16, 64),
        "ops": "reference",
        "num_threads": 1,
    }
    return EngineConfig(**(fields | changes))


def resolved(name: str = "echo", **generation_config: Any) -> Resolved:
    source = ModelSource(name, "dummy", None, {}, generation_config, None)
    return Resolved(engine_config(name), source, Path(), [])


def ready(num_blocks: int = NUM_BLOCKS) -> Ready:
    return Ready(num_blocks, BLOCK_SIZE, {"load": 0.0}, {"device": "none"})


def input_processor(num_blocks: int = NUM_BLOCKS, **generation_config: Any) -> InputProcessor:
    return InputProcessor(resolved(**generation_config), ByteTokenizer(), ready(num_blocks))


def check_structure(wanted: StructuredOutputsParams) -> WrittenStructure:
    """Here, where `Structures` asks another process."""
    return checked(byte_tokenizer(), wanted, {}, {})


def load_echo(config: EngineConfig, executor: object = None) -> tuple[EngineCore, Ready]:
    """What `process.load_core` is for the real model; "slow" takes 20 ms a step."""
    core = EngineCore(config, EchoExecutor(0.02 if config.model_path == "slow" else 0.0))
    return core, core.ready()
