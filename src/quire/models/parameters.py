"""A model's parameters, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from quire.core.dtypes import DType, HostArray
    from quire.core.quantized import QuantizedWeight

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


Cut = Literal["", "rows", "columns"]
"""Which part of a weight each rank of a tensor-parallel group has; "" is all of it."""
Run = tuple[int, int]
"""First row, and number of rows."""
Kind = Literal["linear", "router", "heads", "head", "table", "norm", "bias", "exact"]


class RowForm(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a weight are, and how they are packed.

    Attributes:
        experts: so many linear layers alike, whose rows follow each other; 0 of other parameters.
            `parts` has those of each.
        paired: elements of each head of q and k that RoPE turns in pairs of neighbours (see
            `models.weights.row_order`).
        tail: elements at the end of each head that RoPE turns, and that are packed in front; 0 if
            it turns the first ones.
        runs: first row and number of rows of each run, in the order in which they are packed; ()
            keeps the stored order.
        factors: what the packed rows of each part are multiplied by; () leaves them.
        pieces: rows of each run that is cut like a part, where these are not `parts`.
    """

    experts: int = 0
    paired: int = 0
    tail: int = 0
    runs: tuple[Run, ...] = ()
    factors: tuple[float, ...] = ()
    pieces: tuple[int, ...] = ()


class Parameter(RowForm, frozen=True):
    """One tensor of the model.

    Attributes:
        name: "embed.weight", "layers.0.attn.qkv.weight" …
        shape: row-major; [out, in] for a linear layer.
        parts: rows of each tensor that is merged into it (q, k, v; gate, up); they add up
            to shape[0].
        kind: "linear" weights may be quantized; a "router" chooses experts, and is rounded to the
            model's dtype at most; "heads" makes keys and values of latents, and is dequantized to
            that dtype; "head" is a classifier's; "exact" vectors stay float32.
        cut, unit: what a rank has of it: rows of each part, or columns, `unit` of which stay
            together (a head's).
        gated: two parts whose rows alternate in blocks once they are packed.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[int, ...]
    kind: Kind
    cut: Cut = ""
    unit: int = 1
    gated: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stem(self) -> str:
        """Return the linear layer whose weight it is."""
        return self.name.removesuffix(".weight")

    @property
    def in_layer(self) -> bool:
        """Return whether it is a linear layer's weight in one of the model's layers."""
        return self.kind == "linear" and self.name.startswith("layers.")


class ParameterSource(Protocol):
    """Where a decoder gets its parameters from, one at a time: the whole model is never there.

    Attributes:
        dtype: the model's, of everything that is not quantized.
    """

    dtype: DType

    def has(self, name: str) -> bool:
        """Return whether the model has the parameter `name`."""

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        """Return arrays of the model's dtype, or quantized weights: their rows are the parameter's.

        They may lie in a mapped file and must not be written to. They are good until the next
        parameter is asked for.
        """

    def tensor(self, name: str) -> HostArray:
        """Return the whole parameter, dense, in its own memory."""


def dealt(count: int, rank: int, ranks: int) -> Run:
    """Return a rank's part of `count`, at least one, dealt as evenly as possible."""
    first = rank * count // ranks
    return first, max(1, (rank + 1) * count // ranks - first)
