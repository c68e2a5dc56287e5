"""The usage of OpenAI's answers, and the events of their streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.outputs import RequestOutput
from quire.server.http.json_text import encode
from quire.server.openai import answers
from quire.server.openai.protocol import StreamOptions
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.server.openai.choice import ChoiceReader

_MARK = "\0text\0"


@dataclass(slots=True)
class UsageCounter:
    """Adds up the usage of a request's outputs; each output must be counted once.

    Attributes:
        reported, continuous: whether a stream's last chunk reports usage, and each earlier one.
        drafts: by prompt, accepted and verified drafts.
        readers: by choice of a chat, if its text may have more than content; they count the
            tokens of reasoning.
    """

    reported: bool = False
    continuous: bool = False
    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    drafts: dict[int, tuple[int, int]] = field(default_factory=dict)
    completion_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    """Of the last prompt that was handed over."""
    readers: dict[int, ChoiceReader] = field(default_factory=dict)

    @classmethod
    def of_stream(cls, options: StreamOptions | None, *, force: bool = False) -> UsageCounter:
        """Return the request's choice; `force` is the server's --enable-force-include-usage."""
        if options is None:
            return cls(reported=force)
        reported = force or options.include_usage
        return cls(reported=reported, continuous=reported and options.continuous_usage_stats)

    def of_chunk(self) -> answers.Usage | UnsetType | None:
        """Return the usage of a chunk before the last: unset, null, or the usage so far."""
        if self.continuous:
            return self.usage()
        return None if self.reported else UNSET

    def last_event(self, chunk: answers.ChatChunk | answers.CompletionResponse) -> bytes:
        """Return `chunk` with the usage as the last event; nothing if the stream reports none."""
        if not self.reported:
            return b""
        chunk.usage = self.usage()
        return event(chunk)

    def add(self, prompt: int, output: RequestOutput) -> None:
        self.kv_transfer_params = output.kv_transfer_params or self.kv_transfer_params
        self.prompts[prompt] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self.completion_tokens += sum(len(o.token_ids) for o in output.outputs)
        self.drafts[prompt] = output.metrics.num_accepted_tokens, output.metrics.num_draft_tokens

    def usage(self) -> answers.Usage:
        prompt_tokens = sum(tokens for tokens, _ in self.prompts.values())
        cached = sum(cached for _, cached in self.prompts.values())
        return answers.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=prompt_tokens + self.completion_tokens,
            prompt_tokens_details=answers.PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=self._details(),
        )

    def _details(self) -> answers.CompletionTokensDetails:
        details = answers.CompletionTokensDetails(
            reasoning_tokens=sum(reader.reasoning_tokens for reader in self.readers.values())
        )
        if drafted := sum(drafted for _, drafted in self.drafts.values()):
            accepted = sum(accepted for accepted, _ in self.drafts.values())
            details.accepted_prediction_tokens = accepted
            details.rejected_prediction_tokens = drafted - accepted
        return details


def event(message: msgspec.Struct) -> bytes:
    """Return `message` as a server-sent event."""
    return b"data: " + encode(message) + b"\n\n"


class TextEvent:
    """An event of which only the text changes; the rest is encoded once.

    Args:
        make: returns the message with a given text.
    """

    def __init__(self, make: Callable[[str], msgspec.Struct]) -> None:
        # Split at the last mark: a model's name could contain the mark, and comes before the text.
        mark = msgspec.json.encode(_MARK)
        self._head, _, self._tail = event(make(_MARK)).rpartition(mark)

    def encode(self, text: str) -> bytes:
        return self._head + msgspec.json.encode(text) + self._tail
