"""The one encoder of BERT's kind: attention both ways, a norm behind each residual sum. (Those with
norms before their layers are a `Decoder` that looks both ways.)"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.models.decoder import Builder, Place
from quire.models.parameters import ParameterSource
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.table import LinearWeight, OpTable


class Encoder:
    """Texts to hidden states, all of a text in one step; what `models.decoder.Decoder` is to the
    runner, straight-line code on `ops` as well.

    Keys and values go through the paged cache, where attention finds them in its own order; what
    one layer stores there the next one overwrites.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: ParameterSource,
        max_len: int,
        ops: OpTable,
        stored: Mapping[str, LinearWeight] | None = None,
        place: Place | None = None,
    ) -> None:
        """See `Decoder`."""
        self.config = config
        build = Builder(config, source, max_len, ops, stored or {}, place)
        self._embedding = build.embedding(None, _positions(config, source).to(ops.device.torch), 0)
        self._embed_norm = build.norm("embed_norm")
        self._layers = [build.layer(i) for i in range(config.num_hidden_layers)]
        self._classifier = build.classifier()
        self.kv_units = [(1.0, 1.0)] * config.num_hidden_layers
        self.linear_weights = build.linear_weights

    def modules(self, kv_caches: list[KVCache]) -> dict[int, str]:
        """See `Decoder.modules`."""
        found: dict[int, str] = {
            id(self._embedding.weight): "embed",
            id(self._embedding.positions): "positions",
            id(self._embed_norm.weight): "embed_norm",
        }
        for i, (layer, cache) in enumerate(zip(self._layers, kv_caches, strict=True)):
            found |= layer.modules(f"layers.{i}", cache, gated=self.config.gated_mlp)
        return found

    def forward(
        self,
        ops: OpTable,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[KVCache],
        meta: AttentionMetadata,
        rows: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`; a position p of the second text of a pair is given as
        max_position_embeddings + p (see `_positions`)."""
        x = self._embed_norm.forward(ops, self._embedding.forward(ops, input_ids, positions))
        for i, (layer, cache) in enumerate(zip(self._layers, kv_caches, strict=True)):
            attended = layer.attn.forward(ops, x, positions, cache, meta)
            if rows is not None and i + 1 == len(self._layers):
                # Nothing looks at other rows from here on.
                attended, x = ops.embedding(rows, attended), ops.embedding(rows, x)
            assert layer.attn_norm is not None
            x, _ = layer.attn_norm.add_forward(ops, layer.attn.out.forward(ops, attended), x)
            x, _ = layer.mlp_norm.add_forward(ops, layer.mlp.forward(ops, x), x)
        return x

    def compute_logits(self, ops: OpTable, hidden: Tensor) -> Tensor:
        """[N, hidden] → float32 [N, labels]."""
        assert self._classifier is not None, "the model has no head"
        return self._classifier.forward(ops, hidden)


def _positions(config: ModelConfig, source: ParameterSource) -> Tensor:
    """What is added to a token's embedding, for its position and type: a table of positions for
    each type, one after the other, [token_types · max_position_embeddings, hidden]."""
    positions = source.tensor("positions.weight")[config.learned_positions_offset or 0 :].float()
    if not config.token_types:
        return positions.to(source.dtype)
    types = source.tensor("token_types.weight").float()
    return torch.cat([positions + each for each in types]).to(source.dtype)
