"""Where a model's reasoning begins and ends, for a limit of its tokens."""

from __future__ import annotations

import msgspec


class ThinkingMarks(msgspec.Struct, frozen=True, array_like=True):
    """Between which texts a model reasons before it answers.

    Attributes:
        begins: the reasoning begins behind one of them, at the start of the answer.
        ends: it ends with the first of them.
        forced: the text that ends it where the limit is reached; empty is the first of `ends`.
        begun: the prompt has begun the reasoning; the input processor finds it out.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    forced: str = ""
    begun: bool = False
