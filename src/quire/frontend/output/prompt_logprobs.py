"""The log-probabilities of a prompt, which become objects only when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from quire.core.messages import unpack_logprobs
from quire.core.outputs import PositionLogprobs
from quire.frontend.output.position import position_logprobs
from quire.text.tokenizers.tokenizer import Tokenizer


class PromptPositions(Sequence[PositionLogprobs | None]):
    """One entry per token of a prompt, None for the first; equal to the list of its entries.

    A long prompt has a million numbers. To convert them all at once would block the event loop for
    seconds, so each access converts one position. Pickled or copied, it becomes a list.

    Args:
        packed: one `TokenLogprobs` per token but the first (`pack_logprobs`).
    """

    __slots__ = ("_packed", "_tokenizer")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, packed: list[bytes], tokenizer: Tokenizer) -> None:
        self._packed = packed
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return 1 + len(self._packed)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[PositionLogprobs | None]: ...
    def __getitem__(
        self, index: int | slice
    ) -> PositionLogprobs | list[PositionLogprobs | None] | None:
        at = range(len(self))[index]
        return [self._at(each) for each in at] if isinstance(at, range) else self._at(at)

    def _at(self, index: int) -> PositionLogprobs | None:
        if not index:
            return None
        return position_logprobs(self._tokenizer, unpack_logprobs(self._packed[index - 1]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)
