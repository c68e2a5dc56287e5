"""The one decoder that every architecture is a variant of, but for encoders of BERT's kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from quire.core.config import ModelConfig, RopeConfig
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.layers.attention import Attention
from quire.layers.classifier import Classifier
from quire.layers.embedding import Embedding, VocabParallelEmbedding
from quire.layers.linear import Linear, RowParallelLinear, VocabParallelLinear
from quire.layers.mlp import MLP, Activation
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.layers.rotary import rope_table
from quire.models.parameters import ParameterSource
from quire.ops.lora import LoraTable
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.reference import GATED_BY, Epilogue
from quire.ops.table import LinearWeight, OpTable

Place = Callable[[str, LinearWeight], LinearWeight]


class Layer:
    """Attention and feed-forward, each behind a norm and beside a residual stream.

    In some architectures each has a norm in front of the residual stream, too; ModernBERT's first
    layer lacks the norm before attention.
    """

    __slots__ = ("attn", "attn_norm", "attn_post_norm", "mlp", "mlp_norm", "mlp_post_norm")

    def __init__(
        self,
        attn_norm: Norm | None,
        attn: Attention,
        attn_post_norm: Norm | None,
        mlp_norm: Norm,
        mlp: MLP,
        mlp_post_norm: Norm | None,
    ) -> None:
        self.attn_norm = attn_norm
        self.attn = attn
        self.attn_post_norm = attn_post_norm
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.mlp_post_norm = mlp_post_norm

    def modules(self, stem: str, cache: KVCache, *, gated: bool) -> dict[int, str]:
        """The id of each weight, as ops are given it, and of the cache → its module.

        Args:
            gated: `mlp.up` is gate and up in one.
        """
        up = "gate_up" if gated else "up"
        linears = {
            f"{stem}.attn.qkv": self.attn.qkv,
            f"{stem}.attn.out": self.attn.out,
            f"{stem}.mlp.{up}": self.mlp.up,
            f"{stem}.mlp.down": self.mlp.down,
        }
        norms = {
            f"{stem}.attn_norm": self.attn_norm,
            f"{stem}.attn_post_norm": self.attn_post_norm,
            f"{stem}.mlp_norm": self.mlp_norm,
            f"{stem}.mlp_post_norm": self.mlp_post_norm,
        }
        found: dict[int, str] = {id(cache): f"{stem}.attn"}
        found |= {id(linear.weight): name for name, linear in linears.items()}
        for name, linear in linears.items():
            if linear.adapters is not None:
                found[id(linear.adapters)] = name
        found |= {id(norm.weight): name for name, norm in norms.items() if norm is not None}
        return found


class Decoder:
    """A causal language model on a paged KV cache.

    Straight-line code that calls `ops` alone: no torch arithmetic, no branch on a tensor's
    value, so that the same forward can be recorded and replayed. Callers hold
    `torch.inference_mode()`.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: ParameterSource,
        max_len: int,
        ops: OpTable,
        stored: Mapping[str, LinearWeight] | None = None,
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
        build = Builder(config, source, max_len, ops, stored or {}, place, adapters or {})
        self._lm_head = build.head()
        self._embedding = build.embedding(
            self._lm_head if config.tie_word_embeddings else None,
            build.optional("positions.weight"),
            config.learned_positions_offset or 0,
        )
        self._embed_norm = build.norm("embed_norm") if config.encoder else None
        self._layers = [build.layer(i) for i in range(config.num_hidden_layers)]
        self._norm = build.norm("norm")
        later = [layer.attn_norm for layer in self._layers[1:] if layer.attn_norm is not None]
        self._following: list[Norm] = [*later, self._norm]
        """The norm behind each layer."""
        self._classifier = build.classifier()
        self.kv_units = [_kv_units(source, i) for i in range(config.num_hidden_layers)]
        """Of k and v of each layer: what one unit of an 8-bit float is worth in its cache."""
        self.linear_weights = build.linear_weights
        """Parameter → its packed weight."""

    def modules(self, kv_caches: list[KVCache]) -> dict[int, str]:
        """The id of each weight, as ops are given it, and of each layer's cache → its module."""
        embedding = self._embedding
        found: dict[int, str] = {
            id(embedding.weight): "embed",
            id(self._norm.weight): "norm",
        }
        if embedding.positions is not None:
            found[id(embedding.positions)] = "positions"
        if self._embed_norm is not None:
            found[id(self._embed_norm.weight)] = "embed_norm"
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
        adapter: Tensor | None = None,
        row_adapter: Tensor | None = None,
        embeds: Tensor | None = None,
    ) -> Tensor:
        """Compute one step: input_ids and positions int64 [T] → hidden states [T, hidden].

        Stores the tokens' keys and values in `kv_caches`, one for each layer. With `rows`, int64
        [S] below T, only their hidden states are returned: [S, hidden]. `adapter` and
        `row_adapter` (see `ops.lora.lora_add`) are the tokens' and those of `rows`. With `embeds`,
        [T, hidden], these stand for the embeddings of `input_ids`.
        """
        residual = self._embedding.forward(ops, input_ids, positions, embeds)
        if self._embed_norm is not None:
            residual = self._embed_norm.forward(ops, residual)
        first = self._layers[0].attn_norm
        x = residual if first is None else first.forward(ops, residual)
        for i, (layer, cache) in enumerate(zip(self._layers, kv_caches, strict=True)):
            x = layer.attn.forward(ops, x, positions, cache, meta, adapter)
            if rows is not None and i + 1 == len(self._layers):
                # Nothing looks at other rows from here on.
                x, residual = ops.embedding(rows, x), ops.embedding(rows, residual)
                adapter = row_adapter
            x = layer.attn.out.forward(ops, x, adapter)
            if layer.attn_post_norm is not None:
                x = layer.attn_post_norm.forward(ops, x)
            x, residual = layer.mlp_norm.add_forward(ops, x, residual)
            x = layer.mlp.forward(ops, x, adapter)
            if layer.mlp_post_norm is not None:
                x = layer.mlp_post_norm.forward(ops, x)
            x, residual = self._following[i].add_forward(ops, x, residual)
        return x

    def embed(self, ops: OpTable, input_ids: Tensor) -> Tensor:
        """int64 [T] → [T, hidden], as the checkpoint has them."""
        return self._embedding.look_up(ops, input_ids)

    def compute_logits(self, ops: OpTable, hidden: Tensor) -> Tensor:
        """[N, hidden] → float32 [N, vocab], or [N, labels] where it classifies."""
        if self._classifier is not None:
            return self._classifier.forward(ops, hidden)
        assert self._lm_head is not None, "the model has no head"
        logits = self._lm_head.logits(ops, hidden)
        cap = self.config.logits_softcap
        return logits if cap is None else ops.softcap(logits, cap)


def _kv_units(source: ParameterSource, layer: int) -> tuple[float, float]:
    """The checkpoint's scales of an 8-bit KV cache, a layer's k and v; 1 where it has none."""
    units = []
    for name in (f"layers.{layer}.attn.k_scale", f"layers.{layer}.attn.v_scale"):
        unit = float(source.tensor(name)) if source.has(name) else 1.0
        if not 0.0 < unit < math.inf:
            raise CheckpointError(f"{name} is {unit}; the scale of a KV cache is positive.")
        units.append(unit)
    k, v = units
    return k, v


class Builder:
    """Makes layers out of the parameters of a source."""

    def __init__(
        self,
        config: ModelConfig,
        source: ParameterSource,
        max_len: int,
        ops: OpTable,
        stored: Mapping[str, LinearWeight],
        place: Place | None = None,
        adapters: Mapping[str, LoraTable] | None = None,
    ) -> None:
        self._adapters = adapters or {}
        self.linear_weights: dict[str, LinearWeight] = {}
        self._stored = stored
        self._place = place
        self._config = config
        self._source = source
        self._ops = ops
        self._device = ops.device.torch
        self._cos_sin = self._rotations(config.rope, max_len)
        self._local_cos_sin = (
            self._rotations(config.local_rope, max_len) if config.local_rope else self._cos_sin
        )

    def tensor(self, name: str) -> Tensor:
        """A parameter that is not packed."""
        return self._source.tensor(name).to(self._device)

    def _rotations(self, rope: RopeConfig | None, max_len: int) -> Tensor | None:
        return rope_table(rope, max_len).to(self._device) if rope else None

    def layer(self, index: int) -> Layer:
        prefix = f"layers.{index}."
        post = self._config.post_norms
        bare = index == 0 and self._config.pre_norms
        return Layer(
            None if bare else self.norm(f"{prefix}attn_norm"),
            self._attention(f"{prefix}attn", self._config.window(index)),
            self.norm(f"{prefix}attn_post_norm") if post else None,
            self.norm(f"{prefix}mlp_norm"),
            self._mlp(f"{prefix}mlp"),
            self.norm(f"{prefix}mlp_post_norm") if post else None,
        )

    def norm(self, stem: str) -> Norm:
        eps = self._config.norm_eps
        if self._config.norm == "rms_norm":
            return RMSNorm(self._gain(f"{stem}.weight"), eps)
        weight, bias = self.tensor(f"{stem}.weight"), self.optional(f"{stem}.bias")
        return LayerNorm(weight, torch.zeros_like(weight) if bias is None else bias, eps)

    def _gain(self, name: str) -> Tensor:
        """What an RMSNorm multiplies by: the weight in the model's dtype, or 1 + it in float32."""
        weight = self.tensor(name)
        return weight.float() + 1.0 if self._config.norm_plus_one else weight

    def optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if self._source.has(name) else None

    def _attention(self, stem: str, window: int | None) -> Attention:
        config = self._config
        return Attention(
            self.linear(f"{stem}.qkv"),
            self._summed(f"{stem}.out"),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            window=window,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            cos_sin=self._cos_sin if window is None else self._local_cos_sin,
            q_norm=self._gain(f"{stem}.q_norm.weight") if config.qk_norm else None,
            k_norm=self._gain(f"{stem}.k_norm.weight") if config.qk_norm else None,
            eps=config.norm_eps,
            causal=config.causal,
        )

    def _mlp(self, stem: str) -> MLP:
        config = self._config
        activation: Activation
        if config.gated_mlp:
            if config.activation not in GATED_BY:
                raise UnsupportedModelError("a feed-forward gated by relu is not known.")
            name, activation = f"{stem}.gate_up", GATED_BY[config.activation]
        elif config.activation == "silu":
            raise UnsupportedModelError("a feed-forward with silu but without a gate is not known.")
        else:
            name, activation = f"{stem}.up", config.activation
        if name in self._adapters:  # which come before the activation: it is no epilogue
            return MLP(self.linear(name), self._summed(f"{stem}.down"), activation)
        return MLP(self.linear(name, activation), self._summed(f"{stem}.down"))

    def head(self) -> Linear | None:
        """What makes logits, if the model does."""
        if not self._config.lm_head:
            return None
        linear = self.linear("embed" if self._config.tie_word_embeddings else "lm_head", head=True)
        if self._config.vocab_run is None:
            return linear
        first, _ = self._config.vocab_run
        return VocabParallelLinear(linear.weight, first, self._config.vocab_size)

    def embedding(self, tied: Linear | None, positions: Tensor | None, offset: int) -> Embedding:
        """See `Embedding`; `tied` is the head whose weight it shares."""
        weight = tied.weight if tied else self.tensor("embed.weight")
        given = weight, positions, offset, self._config.embedding_scale
        if self._config.vocab_run is None:
            return Embedding(*given)
        first, _ = self._config.vocab_run
        return VocabParallelEmbedding(*given, first=first, vocab_size=self._config.vocab_size)

    def classifier(self) -> Classifier | None:
        if not self._config.num_labels:
            return None
        out = self.linear("head.out", head=True)
        if not self._config.encoder:
            return Classifier(out)
        activation = self._config.classifier_activation
        dense = self.linear("head.dense", "none" if activation == "tanh" else activation, head=True)
        norm = self.norm("head.norm") if self._config.pre_norms else None
        return Classifier(out, dense, norm, tanh=activation == "tanh")

    def _summed(self, stem: str) -> Linear:
        """A layer whose inputs are dealt out among the ranks, if there are several."""
        linear = self.linear(stem)
        return linear if self._ops.ranks == 1 else RowParallelLinear(linear.weight, linear.adapters)

    def linear(self, stem: str, epilogue: Epilogue = "none", *, head: bool = False) -> Linear:
        name = f"{stem}.weight"
        bias = self.optional(f"{stem}.bias")
        weight = self._stored[name] if name in self._stored else self._source.parts(name)
        packed = self._ops.pack_linear(
            weight, bias, epilogue=epilogue, head=head, dtype=self._source.dtype
        )
        if self._place is not None:
            packed = self._place(name, packed)
        self.linear_weights[name] = packed
        return Linear(packed, self._adapters.get(stem))
