"""The server's interface to an engine: `frontend.async_llm.AsyncLLM`, or a test's stand-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quire.core.errors import QuireError
from quire.core.lora import LoRARequest
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.client.profiling import ProfilingClient
from quire.frontend.output.stream import OutputSink
from quire.frontend.output.timeline import Timelines
from quire.metrics.stats import EngineStats
from quire.resolve.arguments import EngineArgs

if TYPE_CHECKING:
    from quire.frontend.input.input_processor import Countable, Prompt
    from quire.frontend.input.pooling_input import PoolingPrompt
    from quire.resolve.engine import Resolved
    from quire.text.tokenizers.tokenizer import Tokenizer


class Engine(Protocol):
    """An engine that serves one model to one event loop."""

    @property
    def args(self) -> EngineArgs: ...

    @property
    def resolved(self) -> Resolved: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def max_total_tokens(self) -> int: ...

    @property
    def max_num_seqs(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def error(self) -> QuireError | None:
        """Return why it accepts no requests now; None if it does, or is loading."""
        ...

    @property
    def draining(self) -> bool:
        """Return whether it finishes its requests and accepts no more."""
        ...

    @property
    def num_queued(self) -> int:
        """Return the sequences in progress beyond one batch; below 0, seats are free."""
        ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def timelines(self) -> Timelines: ...

    @property
    def default_sampling_params(self) -> Mapping[str, Any]:
        """Return the sampling values of the model's generation config."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return what the core runs on; see `messages.Ready`."""
        ...

    @property
    def profiling(self) -> ProfilingClient: ...

    async def submit(
        self,
        prompt: Prompt | PoolingPrompt,
        params: SamplingParams | PoolingParams,
        request_id: str,
        sink: OutputSink,
        options: RequestOptions = NO_OPTIONS,
    ) -> int:
        """Start a request; its outputs, as `output_kind` says, go to `sink`."""
        ...

    async def add_lora(self, lora_request: LoRARequest) -> LoRARequest:
        """Load an adapter; return the request that names it."""
        ...

    async def remove_lora(self, lora_int_id: int) -> bool:
        """Accept no more requests for an adapter, and free it after its last one."""
        ...

    async def tokenize(self, prompt: Countable, add_special_tokens: bool) -> list[int]:
        """Return a prompt's tokens, computed off the event loop."""
        ...

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of tokens, control tokens included, computed off the event loop."""
        ...

    async def check_structure(self, wanted: StructuredOutputsParams) -> None:
        """Raise what `submit` would raise for this structure."""
        ...

    async def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods, between two steps."""
        ...

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free the weights and the KV cache; requests raise until `wake_up`."""
        ...

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model again."""
        ...

    async def is_sleeping(self) -> bool: ...

    def close(self, request_id: str) -> None:
        """Forget a request, aborting it if needed; unknown ids are ignored."""
        ...
