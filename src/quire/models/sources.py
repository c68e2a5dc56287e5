"""Which stored tensor fills which part of which parameter: decided before any data is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.checkpoint.weights import Weights
from quire.core.errors import CheckpointError
from quire.models.architecture import WeightNames
from quire.models.parameters import Parameter

_FIX = "Use weights and config.json of the same model."
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [row, row + rows) of `parameter` are the stored tensor `stored`.

    Attributes:
        transposed: it is stored [in, out].
    """

    parameter: str
    row: int
    rows: int
    stored: str
    transposed: bool


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a checkpoint's tensors go.

    Attributes:
        pieces: they cover every parameter, each row once.
        copies: pairs of stored names that must hold the same values, because one of the two is
            left unread (a tied lm_head that was stored all the same).
    """

    pieces: list[Piece]
    copies: list[tuple[str, str]]


def match(weights: Weights, wanted: list[Parameter], names: WeightNames) -> Sources:
    """Match the stored tensors with the decoder's parameters, one to one.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape, is there under two names, or
            has no place in the architecture; names it, what was expected and what is there.
    """
    return _Matcher(weights, names).match(wanted)


class _Matcher:
    """Keeps account of which stored tensors have found their place."""

    def __init__(self, weights: Weights, names: WeightNames) -> None:
        self._weights = weights
        self._names = names
        self._stored = _by_full_name(weights, names.base_prefix)
        self._used: set[str] = set()

    def match(self, wanted: list[Parameter]) -> Sources:
        tied = all(parameter.name != "lm_head.weight" for parameter in wanted)
        if tied:
            self._let_head_stand_in()
        pieces = [piece for parameter in wanted for piece in self._pieces(parameter)]
        copies = self._tied_copies(pieces) if tied else []
        self._refuse_leftovers()
        return Sources(pieces, copies)

    def _let_head_stand_in(self) -> None:
        """A tied pair may be stored under the head's name alone."""
        (embed,) = self._names.sources("embed.weight")
        if "lm_head.weight" in self._stored:
            self._stored.setdefault(embed, self._stored["lm_head.weight"])

    def _pieces(self, parameter: Parameter) -> list[Piece]:
        sources = self._names.sources(parameter.name)
        # One name for several parts: the checkpoint has merged them just as the decoder does.
        parts = parameter.parts if len(sources) > 1 else (parameter.shape[0],)
        transposed = self._names.is_transposed(parameter.name)
        pieces, row = [], 0
        for source, rows in zip(sources, parts, strict=True):
            shape = (rows, *parameter.shape[1:])
            stored = self._find(source, shape[::-1] if transposed else shape)
            pieces.append(Piece(parameter.name, row, rows, stored, transposed))
            row += rows
        return pieces

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        """The stored tensor that is `name`, once its shape is seen to be right."""
        stored = self._stored.get(name)
        if stored is None:
            raise CheckpointError(
                f"Tensor {name!r} is missing; expected shape {list(shape)}.", fix=_FIX
            )
        got = self._weights.tensors[stored].shape
        if got != shape:
            raise CheckpointError(
                f"Tensor {stored!r} has the wrong shape: expected {list(shape)}, got {list(got)}.",
                fix=_FIX,
            )
        self._used.add(stored)
        return stored

    def _tied_copies(self, pieces: list[Piece]) -> list[tuple[str, str]]:
        """lm_head, where it is tied and yet stored beside the embeddings."""
        embed = next(piece.stored for piece in pieces if piece.parameter == "embed.weight")
        head = self._stored.get("lm_head.weight", embed)
        if head == embed:
            return []
        expected, got = (self._weights.tensors[name].shape for name in (embed, head))
        if expected != got:
            raise CheckpointError(
                f"Tensor {head!r} has the wrong shape: expected {list(expected)}, got {list(got)}.",
                fix=_FIX,
            )
        self._used.add(head)
        return [(embed, head)]

    def _refuse_leftovers(self) -> None:
        left = [
            name
            for name in self._weights.tensors
            if name not in self._used and not re.fullmatch(self._names.ignored, name)
        ]
        if left:
            more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
            raise CheckpointError(
                f"Unexpected tensors: {', '.join(map(repr, left[:_MOST_NAMED]))}{more}; "
                "the architecture in config.json has no place for them.",
                fix=_FIX,
            )


def _by_full_name(weights: Weights, base_prefix: str) -> dict[str, str]:
    """Name as a causal LM has it → stored name; aliases included.

    A checkpoint of the bare model lacks `base_prefix` everywhere but on the lm_head.
    """
    found: dict[str, str] = {}
    for stored in weights.tensors:
        full = _full(stored, base_prefix)
        if full in found:
            raise CheckpointError(
                f"Tensor {full!r} is stored twice, as {found[full]!r} and {stored!r}.",
                fix="Remove the copy that does not belong to this model.",
            )
        found[full] = stored
    for alias, stored in weights.aliases.items():
        found.setdefault(_full(alias, base_prefix), stored)
    return found


def _full(name: str, base_prefix: str) -> str:
    return name if name.startswith((base_prefix, "lm_head.")) else base_prefix + name
