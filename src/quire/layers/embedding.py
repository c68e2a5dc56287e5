"""Token embeddings, and the learned positions that some models add to them."""

from __future__ import annotations

from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Looks up rows of `weight` [vocab, hidden]; adds rows of `positions` [max_len, hidden].

    A tied embedding's `weight` is what `pack_linear` made of it for the output projection.
    `scale` multiplies the rows of `weight`. With `run` = (first, all) each rank has some of all
    rows, from `first` on; every rank gets the same rows.
    """

    weight: Array | LinearWeight
    positions: Array | None = None
    scale: float | None = None
    run: tuple[int, int] | None = None

    def forward(
        self, ops: Ops, input_ids: Array, positions: Array, embeds: Array | None = None
    ) -> Array:
        """Return [T, hidden] for `input_ids` and `positions`, int64 [T].

        `embeds` [T, hidden] replace what `look_up` returns for `input_ids`.
        """
        hidden = self.look_up(ops, input_ids) if embeds is None else embeds
        if self.positions is None:
            return hidden
        return ops.add(hidden, ops.embedding(positions, self.positions))

    def look_up(self, ops: Ops, input_ids: Array) -> Array:
        """Return rows `input_ids` (int64 [T]) of `weight`, scaled, as [T, hidden]."""
        if self.run is None:
            return self.scaled(ops, ops.embedding(input_ids, self.weight))
        return self.scaled(ops, ops.vocab_embedding(input_ids, self.weight, *self.run))

    def scaled(self, ops: Ops, rows: Array) -> Array:
        """Return rows of the table's kind, times `scale`."""
        return rows if self.scale is None else ops.scale(rows, self.scale)
