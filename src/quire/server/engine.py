"""What the server needs of an engine: `engine.async_engine.AsyncLLM`, or a test's stand-in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.stats import EngineStats

if TYPE_CHECKING:
    from quire.engine.input import Prompt
    from quire.text.tokenizer import Tokenizer


class Engine(Protocol):
    """An engine that serves one model to one event loop."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def errored(self) -> bool: ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def default_sampling_params(self) -> Mapping[str, Any]:
        """Sampling values of the model's generation config, for requests that set none."""
        ...

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as `sampling_params.output_kind` asks; closing the generator aborts."""
        ...
