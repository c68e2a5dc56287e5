"""Tokens that stay on the device between two steps: the host queues a step before it knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.ops.array import Array
from quire.ops.filters import FloatRow
from quire.ops.sample_row import SampleRow, TokenIds


class Chosen(Protocol):
    """Tokens on their way to the host."""

    def read(self) -> tuple[TokenIds, FloatRow]:
        """Wait for them; return each row's token and its largest logit, as `Ops.argmax` does.

        May be called once.
        """


class LastTokens(Protocol):
    """The last token of each sequence, by its slot.

    Attributes:
        draws: it can draw tokens, too, not only choose the likeliest.
    """

    draws: bool

    def fill(self, ids: Array) -> None:
        """Replace each id ~slot by the last token of that slot."""

    def choose(self, logits: Array, slots: Array, drawn: Sequence[SampleRow]) -> Chosen:
        """Queue the choice of a token for each row, which becomes the last one of its slot.

        Args:
            drawn: rows whose token is not the likeliest; without edits.
        """
