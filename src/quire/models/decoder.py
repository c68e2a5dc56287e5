"""The one model that every architecture is a variant of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from quire.core.errors import CheckpointError
from quire.core.model_config import OWN_INPUTS, ModelConfig
from quire.layers.embedding import Embedding
from quire.layers.layer import Cache, Tokens
from quire.models.builder import Builder, Place, build_layers
from quire.models.layout import Layout
from quire.models.parameters import ParameterSource
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.lora import LoraTable
from quire.ops.metadata import AttentionMetadata, KVCache

if TYPE_CHECKING:
    from quire.ops.packed_file import StoredLinear


class Decoder:
    """Layers along a residual stream, on a paged KV cache; encoders are decoders that look both
    ways, all of a text in one step.

    Straight-line code that calls `ops` alone: no arithmetic of its own, no branch on an array's
    value, so that the same forward can be recorded and replayed.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: ParameterSource,
        max_len: int,
        ops: Ops,
        stored: Mapping[str, StoredLinear] | None = None,
        place: Place | None = None,
        adapters: Mapping[str, LoraTable] | None = None,
    ) -> None:
        """Build the layers, their linear weights packed for `ops`.

        Args:
            source: asked for one parameter at a time, in the order of the computation.
            max_len: positions are below it.
            stored: parameter → what to give `pack_linear` in its place.
            place: called with each parameter that was packed; gives what is to stand in its
                place, or the same.
            adapters: stem of a linear layer → what may be added to it.
        """
        self.config = config
        self.dtype = source.dtype
        layout = Layout(config)
        build = Builder(config, source, max_len, ops, stored, place, adapters)
        head = layout.head
        self._lm_head = None if head is None else build.linear(head, head=True)
        self.embedding: Embedding | None = None
        if layout.tables and (config.in_first_stage or config.head_embeds):
            self.embedding = build.embedding(self._lm_head)
        self.rotations = build.rotations()
        """The table of `config.rope`; None without RoPE."""
        self._embed_norm = build.norm(layout.embed_norm)
        self._own_inputs = None
        if layout.own_inputs is not None:
            self._own_inputs = build.own_inputs(layout.own_inputs)
        self._first_norm, self.layers = build_layers(build, layout)
        self._first = config.layers.start
        self._classifier = build.classifier(layout)
        self.kv_units = [_kv_units(source, i) for i in config.layers_with("attention")]
        """Of k and v of each attention: what one unit of an 8-bit float is worth in its cache."""
        self.linear_weights = build.linear_weights
        """Parameter → its packed weight."""
        self._modules = build.modules

    def modules(self, caches: Sequence[Cache]) -> dict[int, str]:
        """Return a map from the id of each weight and of each cache to its module."""
        found, left = dict(self._modules), iter(caches)
        for i, layer in enumerate(self.layers, self._first):
            for cache in islice(left, layer.num_caches):
                if isinstance(cache, KVCache):
                    found[id(cache)] = f"layers.{i}.attn"
                else:
                    found |= {id(state): f"layers.{i}.recurrent" for state in cache}
        return found

    def forward(
        self,
        ops: Ops,
        input_ids: Array,
        positions: Array,
        caches: Sequence[Cache],
        meta: AttentionMetadata,
        rows: Array | None = None,
        adapter: Array | None = None,
        row_adapter: Array | None = None,
        *,
        embeds: Array | None = None,
        rotations: Array | None = None,
        deep: Sequence[Array] = (),
        own: Array | None = None,
        tap: Callable[[int, Array], None] | None = None,
    ) -> Array:
        """Compute one step: input_ids and positions int64 [T] → hidden states [T, hidden].

        A pipeline stage behind the first takes the rows of the one before it, [T, hidden], as
        `input_ids`; one before the last returns the residual stream.

        Stores the tokens' keys and values, or states, in `caches`: one for each sub-layer that
        mixes tokens, in order (`runner.kv_tensors.allocate_caches`). With `rows`, int64
        [S] below T, only their hidden states are returned: [S, hidden]. `adapter` and
        `row_adapter` (see `Ops.lora_add`) are the tokens' and those of `rows`. With `embeds`,
        [T, hidden], these stand for what `embed` returns for `input_ids`. `rotations` are
        those of `Tokens`. `deep` [T, hidden] are added behind the first layers, one each. With
        token types, position p of the second text of a pair is given as max_position_embeddings
        + p. `own` [T, `own_columns`] are what the first stage computes of layers' own embeddings.
        `tap` is called with each layer's number and the residual stream that enters it,
        [T, hidden], and with OWN_INPUTS and those embeddings of all layers.
        """
        tokens = Tokens(positions, meta, adapter, rotations=rotations, own=own)
        wanted = None
        if rows is not None and self.config.in_last_stage:
            wanted = rows, row_adapter
        residual = input_ids
        if self.embedding is not None and self.config.in_first_stage:
            residual = self.embedding.forward(ops, input_ids, positions, embeds)
        x, residual = self.enter(ops, residual)
        if self._own_inputs is not None:
            tokens = replace(tokens, own=self._own_inputs.forward(ops, input_ids, residual))
            if tap is not None and tokens.own is not None:
                tap(OWN_INPUTS, tokens.own)
        last = self.layers[-1]
        left = iter(caches)
        for number, layer in enumerate(self.layers, self._first):
            if tap is not None:
                tap(number, residual)
            only = wanted if layer is last else None
            cache = [*islice(left, layer.num_caches)]
            x, residual = layer.forward(ops, x, residual, cache, tokens, only)
            if number < len(deep):
                residual = ops.add(residual, deep[number])
                x = layer.following.forward(ops, residual)
        return x

    def enter(self, ops: Ops, rows: Array) -> tuple[Array, Array]:
        """Return the first layer's x and residual stream, for the rows that enter it."""
        residual = self._embed_norm.forward(ops, rows)
        return self._first_norm.forward(ops, residual), residual

    def embed(self, ops: Ops, input_ids: Array) -> Array:
        """Return the checkpoint's embeddings [T, hidden] of int64 [T], scaled."""
        assert self.embedding is not None, "the stage has no embeddings"
        return self.embedding.look_up(ops, input_ids)

    def compute_logits(self, ops: Ops, hidden: Array) -> Array:
        """Return float32 [N, vocab] for [N, hidden], or [N, labels] of a classifier."""
        if self._classifier is not None:
            return self._classifier.forward(ops, hidden)
        assert self._lm_head is not None, "the model has no head"
        logits = self._lm_head.logits(ops, hidden)
        if self.config.logits_scale is not None:
            logits = ops.scale(logits, self.config.logits_scale)
        cap = self.config.logits_softcap
        return logits if cap is None else ops.softcap(logits, cap)


def _kv_units(source: ParameterSource, layer: int) -> tuple[float, float]:
    """Return a layer's scales of k and v for an 8-bit KV cache; 1 if the checkpoint has none.

    The largest of several heads' scales, so that no number is too large for any.
    """
    units = []
    for name in (f"layers.{layer}.attn.k_scale", f"layers.{layer}.attn.v_scale"):
        unit = float(source.tensor(name).max(initial=0.0)) if source.has(name) else 1.0
        if not 0.0 < unit < math.inf:
            raise CheckpointError(f"{name} is {unit}; the scale of a KV cache is positive.")
        units.append(unit)
    k, v = units
    return k, v
