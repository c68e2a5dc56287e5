"""Configurations and both sides of a front end for the model of `echo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.checkpoint.source import ModelSource
from quire.core.config import EngineConfig, SchedulerConfig
from quire.core.messages import Ready, StepOutputs
from quire.core.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.input.input_processor import InputProcessor, ProcessedRequest
from quire.frontend.output.output_processor import OutputProcessor, ProcessedStep
from quire.frontend.output.tracing import RequestTracer
from quire.metrics.stats import EngineStats
from quire.resolve.engine import Resolved
from quire.text.grammar import checked
from quire.text.tokenizers.dummy import DummyTokenizer
from quire.text.tokenizers.vocabulary import byte_tokenizer
from tests.unit.engine.echo import BLOCK_SIZE, EOS, NUM_BLOCKS, VOCAB_SIZE


class ByteTokenizer(DummyTokenizer):
    """Token i is byte i; 256 and 257 are <s> and </s>."""

    bos_token_id = 256  # type: ignore[assignment]
    eos_token_id = EOS  # type: ignore[assignment]
    all_special_ids = frozenset((256, EOS))

    def __init__(self) -> None:
        super().__init__(VOCAB_SIZE)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else (b"<s>", b"</s>")[token_id - 256]


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
