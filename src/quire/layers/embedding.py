"""Token embeddings, and the learned positions that some models add to them."""

from __future__ import annotations

from torch import Tensor

from quire.ops.table import LinearWeight, OpTable


class Embedding:
    """Looks up rows of `weight` [vocab, hidden]; adds row `position + offset` of `positions`.

    A tied embedding's `weight` is what `pack_linear` made of it for the output projection.
    `offset` is where position 0 lies in the table `positions` [offset + max_len, hidden]:
    2 in OPT, whose first rows once stood for padding. `scale` multiplies the rows of `weight`.
    """

    __slots__ = ("positions", "scale", "weight")

    def __init__(
        self,
        weight: Tensor | LinearWeight,
        positions: Tensor | None = None,
        offset: int = 0,
        scale: float | None = None,
    ) -> None:
        self.weight = weight
        self.scale = scale
        # A view that begins at position 0: no addition a token.
        self.positions = None if positions is None else positions[offset:]

    def forward(
        self, ops: OpTable, input_ids: Tensor, positions: Tensor, embeds: Tensor | None = None
    ) -> Tensor:
        """int64 [T], int64 [T] → [T, hidden]; `embeds` [T, hidden] are taken for what is looked up
        for `input_ids`."""
        hidden = self.look_up(ops, input_ids) if embeds is None else embeds
        if self.scale is not None:
            hidden = ops.scale(hidden, self.scale)
        if self.positions is None:
            return hidden
        return ops.add(hidden, ops.embedding(positions, self.positions))

    def look_up(self, ops: OpTable, input_ids: Tensor) -> Tensor:
        """int64 [T] → rows of `weight`, [T, hidden]."""
        return ops.embedding(input_ids, self.weight)


class VocabParallelEmbedding(Embedding):
    """An embedding of whose `weight` each rank has a run of rows; every rank gets the same rows."""

    __slots__ = ("first", "vocab_size")

    def __init__(
        self,
        weight: Tensor | LinearWeight,
        positions: Tensor | None,
        offset: int,
        scale: float | None,
        *,
        first: int,
        vocab_size: int,
    ) -> None:
        super().__init__(weight, positions, offset, scale)
        self.first = first
        self.vocab_size = vocab_size

    def look_up(self, ops: OpTable, input_ids: Tensor) -> Tensor:
        return ops.vocab_embedding(input_ids, self.weight, self.first, self.vocab_size)
