"""What completions and chat completions share: several prompts at once, usage, events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import msgspec

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.errors import RequestFailedError
from quire.server.openai.protocol import PromptTokensDetails, Usage

Outputs = AsyncGenerator[RequestOutput, None]


async def fan_in(sources: Sequence[Outputs]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The outputs of all sources as they come, each with its source's index.

    The first exception of any source ends them all. Closing this generator closes every source,
    which aborts its request.
    """
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for output in only:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(
        maxsize=2 * len(sources)
    )

    async def pump(index: int, source: Outputs) -> None:
        end: Exception | None = None
        async with contextlib.aclosing(source):
            try:
                async for output in source:
                    await queue.put((index, output))
            except Exception as error:
                end = error
        await queue.put((index, end))

    tasks = [asyncio.create_task(pump(i, source)) for i, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@dataclass(slots=True)
class UsageCounter:
    """Adds up what the outputs of a request used; each output must be counted once."""

    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    completion_tokens: int = 0

    def add(self, prompt: int, output: RequestOutput) -> None:
        self.prompts[prompt] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self.completion_tokens += sum(len(o.token_ids) for o in output.outputs)

    def usage(self) -> Usage:
        prompt_tokens = sum(tokens for tokens, _ in self.prompts.values())
        cached = sum(cached for _, cached in self.prompts.values())
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )


def completions(output: RequestOutput) -> list[CompletionOutput]:
    """The completions of `output`; `RequestFailedError` if the engine gave one of them up."""
    for completion in output.outputs:
        if completion.finish_reason == "error":
            raise RequestFailedError(output.request_id, str(completion.stop_reason))
    return output.outputs


def event(message: msgspec.Struct) -> bytes:
    """`message` as a server-sent event."""
    return b"data: " + msgspec.json.encode(message) + b"\n\n"
