"""The texts around a model's reasoning, for a limit of its tokens."""

from __future__ import annotations

import msgspec


class ThinkingMarks(msgspec.Struct, frozen=True, array_like=True):
    """The texts around a model's reasoning before its answer.

    Attributes:
        begins: the reasoning begins after one of them, at the start of the answer.
        ends: it ends with the first of these that appears.
        forced: the text that ends it at the limit; if empty, the first of `ends`.
        begun: the prompt has begun the reasoning; the input processor sets it.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    forced: str = ""
    begun: bool = False
