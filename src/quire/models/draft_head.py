"""A draft head: one or a few layers that guess what follows the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.model_config import ModelConfig
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.models.builder import Builder, build_layers
from quire.models.layout import Layout
from quire.models.parameters import ParameterSource
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache

if TYPE_CHECKING:
    from quire.models.decoder import Decoder


class DraftHead:
    """Reads the target's row of each token with the embedding of the token behind it.

    Like `Decoder`, straight-line code that calls `ops` alone.

    Args:
        source: asked for one parameter at a time.
        max_len: positions are below it.
        ops: pack the head's weights, all of them in each rank.
        target: its embeddings and its lm_head are used if the head has none.

    Attributes:
        reads_layers: `join` makes the target's rows into the ones that `forward` takes.
        linear_weights: parameter → its packed weight.
    """

    def __init__(
        self, config: ModelConfig, source: ParameterSource, max_len: int, ops: Ops, target: Decoder
    ) -> None:
        draft, layout = config.draft_head, Layout(config)
        assert draft is not None
        assert layout.fusion is not None
        build = Builder(config, source, max_len, ops)
        self.config = config
        self._target = target
        self._form = draft.form
        self._normed_residual = draft.normed_residual
        self.reads_layers = bool(draft.taps)
        self._lm_head = None if layout.head is None else build.linear(layout.head, head=True)
        embedding = build.embedding(None) if draft.own_embedding else target.embedding
        assert embedding is not None, "only a whole model has a draft head"
        self._embedding = embedding
        self._embed_norm = build.norm(layout.fusion.embed_norm)
        self._row_norm = build.norm(layout.fusion.row_norm)
        self._join: list[Linear]
        if draft.joins_in_attention:
            self._join = [build.linear(layout.fusion.linear)]
        else:
            self._join = [*build.side_by_side(layout.fusion.linear, config.hidden_size)]
        self._first_norm, self._layers = build_layers(build, layout)
        self.linear_weights = build.linear_weights
        self.modules = build.modules

    def join(self, ops: Ops, rows: Array) -> Array:
        """Make one row of several layers' rows, side by side: [T, taps · size] → [T, hidden]."""
        (linear,) = self._join
        return linear.forward(ops, rows)

    def forward(
        self,
        ops: Ops,
        input_ids: Array,
        positions: Array,
        hidden: Array,
        kv_caches: list[KVCache],
        meta: AttentionMetadata,
        rows: Array,
    ) -> tuple[Array, Array]:
        """Compute tokens with the rows before them.

        Args:
            input_ids: int64 [T], the token behind each position.
            positions: int64 [T].
            hidden: [T, hidden] the target's rows at these positions, or the head's own.
            rows: int64 [S] below T, which results to return.

        Returns:
            What logits are made of, and the rows that stand for the target's at the next
            positions: both [S, hidden].
        """
        embeds = self._embedding.forward(ops, input_ids, positions)
        embeds = self._embed_norm.forward(ops, embeds)
        normed = self._row_norm.forward(ops, hidden)
        tokens = Tokens(positions, meta)
        if self._form == "eagle3":
            residual = normed if self._normed_residual else hidden
            x, tokens = normed, Tokens(positions, meta, joined=embeds)
        else:
            of_embeds, of_rows = self._join
            residual = ops.add(of_embeds.forward(ops, embeds), of_rows.forward(ops, normed))
            x = self._first_norm.forward(ops, residual)
        last = self._layers[-1]
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            wanted = (rows, None) if layer is last else None
            x, residual = layer.forward(ops, x, residual, [cache], tokens, wanted)
        return x, x if self._form == "mtp" else residual

    def compute_logits(self, ops: Ops, hidden: Array) -> Array:
        """Return float32 [N, tokens of the head's vocabulary] for [N, hidden]."""
        if self._lm_head is None:
            return self._target.compute_logits(ops, hidden)
        return self._lm_head.logits(ops, hidden)
