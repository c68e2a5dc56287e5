"""Makes layers out of their declarations (`models.specs`) and the parameters of a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.model_config import ModelConfig
from quire.core.quantized import columns_of, dense
from quire.layers.attention import Attention
from quire.layers.classifier import Classifier
from quire.layers.embedding import Embedding
from quire.layers.latent import LatentAttention
from quire.layers.layer import Layer, Mixer, SubLayer
from quire.layers.linear import Linear
from quire.layers.mlp import MLP
from quire.layers.moe import Experts, MoE, MoENorms
from quire.layers.norm import FactorNorm, GatheredNorm, LayerNorm, NoNorm, Norm, RMSNorm, Scale
from quire.layers.own_input import OwnInput, OwnInputs
from quire.models.latent_heads import head_weights
from quire.models.layout import Layout
from quire.models.parameters import ParameterSource, dealt
from quire.models.recurrent import recurrent_layer
from quire.models.rotations import Rotations
from quire.models.specs import (
    AttentionSpec,
    LatentSpec,
    LayerSpec,
    LinearSpec,
    MLPSpec,
    MoESpec,
    NormSpec,
    OwnInputSpec,
    OwnInputsSpec,
    RecurrentSpec,
    VectorSpec,
    following_norms,
)
from quire.models.specs import Mixer as MixerSpec
from quire.models.weights.row_order import packed_bias, packed_rows
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.lora import LoraTable
from quire.ops.metadata import AttentionRules, Heads
from quire.ops.weights import LinearWeight

if TYPE_CHECKING:
    from quire.ops.packed_file import StoredLinear

Place = Callable[[str, LinearWeight], LinearWeight]


class Builder:
    """Reads each parameter once and packs it for `ops`.

    Attributes:
        linear_weights: parameter → its packed weight.
        modules: id of a weight, as ops are given it → its module, for profiles.
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
        """See `models.decoder.Decoder`."""
        self.linear_weights: dict[str, LinearWeight] = {}
        self.modules: dict[int, str] = {}
        self._adapters, self._stored, self._place = adapters or {}, stored or {}, place
        self._config, self._source, self._ops = config, source, ops
        run = config.vocab_run
        self._vocab_run = None if run is None else (run[0], config.vocab_size)
        self._rotations = Rotations(config, max_len, ops)

    def layer(self, spec: LayerSpec, following: NormSpec | None) -> Layer:
        """Build the layer without its first norm and with `following`, the norm after it."""
        sublayers = []
        for sublayer, (side, behind) in zip(spec, following_norms(spec, following), strict=True):
            mixer, scale = self._mixer(sublayer.mixer), self._config.residual_scale
            norm = self.norm(sublayer.after)
            after = norm if scale is None else Scale(scale, norm)
            join, branch = self.norm(behind), None if side is None else self.norm(side)
            if sublayer.factor is not None:
                join = FactorNorm(float(self._source.tensor(sublayer.factor.name)[0]), join)
            rejoins = sublayer.total is not None
            sublayers.append(SubLayer(mixer, after, join, rejoins, sublayer.parallel, branch))
        return Layer(sublayers)

    def side_by_side(self, spec: LinearSpec, first: int) -> tuple[Linear, Linear]:
        """Split a linear layer in two, of the first columns and of the others; their sum counts.

        The second one has the bias.
        """
        name, bias = f"{spec.stem}.bias", None
        if self._source.has(name):
            bias = packed_bias(spec.weight, self._source.tensor(name))
        parts: list[Any] = self._source.parts(spec.name)
        try:
            for part in parts:
                columns_of(part, 0, first)
        except ValueError:  # groups of columns that are out of order, or not whole
            parts = [dense(part, self._source.dtype) for part in parts]
        both = []
        for begin, end in ((0, first), (first, spec.columns)):
            cut: list[Any] = [columns_of(part, begin, end - begin) for part in parts]
            packed = self._ops.pack_linear(
                packed_rows(spec.weight, cut), bias if begin else None, dtype=self._source.dtype
            )
            self.linear_weights[f"{spec.name}[{begin}:{end}]"] = packed
            self.modules[id(packed)] = spec.stem
            both.append(Linear(packed))
        return both[0], both[1]

    def linear(self, spec: LinearSpec, *, head: bool = False) -> Linear:
        """Build a linear layer; `head`: it makes logits."""
        name, adapters = spec.name, self._adapters.get(spec.stem)
        # The source takes a weight's pages back when it reads the next tensor: the weight is last.
        bias, bias_name = None, f"{spec.stem}.bias"
        if self._source.has(bias_name):  # of a summed layer, rank 0 alone
            bias = packed_bias(spec.weight, self._source.tensor(bias_name))
        packed = self._ops.pack_linear(
            self._stored[name]
            if name in self._stored
            else packed_rows(spec.weight, self._source.parts(name)),
            bias,
            epilogue=(spec.activation if adapters is None else None) or "none",
            head=head,
            exact=spec.kind == "router",
            dtype=self._source.dtype,
            experts=max(1, spec.experts),
        )
        if self._place is not None:
            packed = self._place(name, packed)
        self.linear_weights[name] = packed
        self.modules[id(packed)] = spec.stem
        if adapters is not None:
            self.modules[id(adapters)] = spec.stem
        summed = spec.cut == "columns" and self._ops.ranks > 1
        run = self._vocab_run if spec.kind == "linear" and head else None
        return Linear(packed, adapters, summed=summed, run=run)

    def norm(self, spec: NormSpec | None) -> Norm:
        """Build a norm; one that does nothing if `spec` is None."""
        if spec is None:
            return NoNorm()
        eps = self._config.norm_eps
        if self._config.norm == "rms_norm":
            gain = self._gain(spec)
            self.modules[id(gain)] = spec.stem
            return RMSNorm(gain, eps)
        gain = _weight(self._source, spec)
        if self._config.norm_gain == "plus_one":
            gain = converted(converted(gain, FLOAT32) + np.float32(1.0), self._source.dtype)
        weight = self._ops.array(gain)
        zeros = np.zeros(weight.shape, self._source.dtype)
        bias = self._array(f"{spec.stem}.bias") if spec.bias else self._ops.array(zeros)
        self.modules[id(weight)] = spec.stem
        return LayerNorm(weight, bias, eps)

    def embedding(self, head: Linear | None) -> Embedding:
        """Build the embedding, which shares the head's weight if they are tied."""
        config, tied = self._config, self._config.tie_word_embeddings
        weight: Array | LinearWeight = (
            head.weight if head is not None and tied else self._array("embed.weight")
        )
        self.modules[id(weight)] = "embed"
        table, positions = _positions(config, self._source), None
        if table is not None:
            positions = self._ops.array(table)
            self.modules[id(positions)] = "positions"
        scale = config.embedding_scale
        if scale is not None and config.embedding_scale_rounded:
            scale = float(converted(np.array([scale], FLOAT32), self._source.dtype)[0])
        return Embedding(weight, positions, scale, self._vocab_run)

    def own_inputs(self, spec: OwnInputsSpec) -> OwnInputs:
        """Build what makes all layers' own embeddings; the scale of their table is rounded."""
        config, source = self._config, self._source
        table = self._array(spec.table.name)
        self.modules[id(table)] = spec.table.stem
        scale = float(converted(np.array([config.own_input**0.5], FLOAT32), source.dtype)[0])
        embedding = Embedding(table, None, scale, self._vocab_run)
        project, norm = self.linear(spec.linear), self.norm(spec.norm)
        return OwnInputs(embedding, project, norm, config.hidden_size**-0.5, config.own_input)

    def rotations(self) -> Array | None:
        """Return the table of the model's RoPE; None without it."""
        return self._rotations.table(self._config.rope)

    def classifier(self, layout: Layout) -> Classifier | None:
        if layout.classifier is None:
            return None
        dense, norm, out = layout.classifier
        return Classifier(
            self.linear(out, head=True),
            None if dense is None else self.linear(dense, head=True),
            norm=self.norm(norm),
            tanh=self._config.classifier_activation == "tanh",
        )

    def _mixer(self, spec: MixerSpec) -> Mixer:
        if isinstance(spec, AttentionSpec):
            return self._attention(spec)
        if isinstance(spec, LatentSpec):
            return self._latent(spec)
        if isinstance(spec, RecurrentSpec):
            return recurrent_layer(spec, self._source, self._ops, self.linear, self._config)
        if isinstance(spec, OwnInputSpec):
            apart = spec.gate.activation if spec.gate.stem in self._adapters else None
            return OwnInput(self.linear(spec.gate), self.linear(spec.out), spec.first, apart)
        return self._moe(spec) if isinstance(spec, MoESpec) else self._mlp(spec)

    def _attention(self, spec: AttentionSpec) -> Attention:
        config, joined, scale = self._config, None, self._config.attention_scale
        if spec.qkv.columns > config.hidden_size:
            joined, qkv = self.side_by_side(spec.qkv, config.hidden_size)
        else:
            qkv = self.linear(spec.qkv)
        sub_norm, out = self._output(spec.sub_norm, spec.out)
        heads, rotated = self._heads(spec)
        rules = AttentionRules(
            spec.head_dim**-0.5 if scale is None else scale, spec.window, config.attention_softcap,
            config.causal, None if spec.sinks is None else self._array(spec.sinks.name),
            config.chunked and spec.window is not None,
            spec.window is not None or getattr(config.vision, "whole", None) != "sliding",
        )  # fmt: skip
        return Attention(
            qkv,
            heads=heads,
            rules=rules,
            cos_sin=self._rotations.table(spec.rope),
            q_cos_sin=self._rotations.of_queries(spec.rope),
            rotated_q_norm=rotated,
            joined=joined,
            sub_norm=sub_norm,
            out=out,
            gated=config.output_gate == "of_q",
            gate=None if spec.gate is None else self.linear(spec.gate),
        )

    def _latent(self, spec: LatentSpec) -> LatentAttention:
        config, latent, scale = self._config, self._config.latent, self._config.attention_scale
        assert latent is not None
        assert scale is not None
        packed = head_weights(
            self._ops, self._source, spec.heads, latent, config.num_attention_heads, self._stored
        )
        self.linear_weights |= packed
        self.modules |= {id(weight): name for name, weight in packed.items()}
        key, value = packed.values()
        return LatentAttention(
            self.linear(spec.q),
            self.linear(spec.kv),
            self.linear(spec.out),
            q_down=None if spec.q_down is None else self.linear(spec.q_down),
            q_gain=None if spec.q_norm is None else self._gain(spec.q_norm),
            gain=self._gain(spec.norm),
            eps=latent.norm_eps,
            key=key,
            value=value,
            latent=latent,
            heads=config.num_attention_heads,
            scale=scale,
            cos_sin=self._rotations.table(spec.rope),
            growth=self._rotations.growth(spec.rope, self._source.dtype),
        )

    def _mlp(self, spec: MLPSpec) -> MLP:
        # Adapters are added before the activation, which is no epilogue then.
        apart = spec.up.activation if spec.up.stem in self._adapters else None
        up, (sub_norm, down) = self.linear(spec.up), self._output(spec.sub_norm, spec.down)
        return MLP(up, down, apart, sub_norm, _xielu(self._source, spec.xielu))

    def _output(
        self, norm: NormSpec | None, spec: LinearSpec
    ) -> tuple[Norm | GatheredNorm | None, Linear]:
        """Build the last product of a sub-layer, and the norm before it, if it has one."""
        linear = self.linear(spec)
        if norm is None or self._config.norm_rank is None:
            return None if norm is None else self.norm(norm), linear
        rank, ranks = self._config.norm_rank
        gathered = GatheredNorm(self.norm(norm), (rank * norm.width // ranks, norm.width))
        rows = self._config.hidden_size
        return gathered, replace(linear, run=(dealt(rows, rank, ranks)[0], rows))

    def _moe(self, spec: MoESpec) -> MoE:
        config, correction, gate = self._config.moe, spec.correction, spec.shared_gate
        assert config is not None
        router = self.linear(spec.router)
        experts = Experts(self.linear(spec.up).weight, self.linear(spec.down).weight)
        shared: MLP | Experts | None = None
        if spec.shared is not None:
            shared = self._mlp(spec.shared)
            if gate is not None:
                shared = Experts(shared.up.weight, shared.down.weight)
        factors, norms = spec.factors, {}
        if spec.norms:  # rows in front of the router have a length near 1
            router_gain = self._gain(spec.norms[0], self._config.hidden_size**-0.5)
            first = RMSNorm(router_gain, self._config.norm_eps)
            norms = {"norms": MoENorms(first, *map(self.norm, spec.norms[1:]))}
        return MoE(
            config,
            router,
            experts,
            correction=None if correction is None else self._array(correction.name),
            factors=None if factors is None else self._array(factors.name),
            shared=shared,
            shared_gate=None if gate is None else self.linear(gate),
            **norms,
        )

    def _gain(self, spec: NormSpec, factor: float = 1.0) -> Array:
        """Return an RMSNorm's gain times `factor`, in the model's dtype or in float32."""
        weight, how = _weight(self._source, spec), self._config.norm_gain
        if how != "rounded":
            weight = converted(weight, FLOAT32) + np.float32(how == "plus_one")
        return self._ops.array(weight if factor == 1.0 else weight * np.float32(factor))

    def _heads(self, spec: AttentionSpec) -> tuple[Heads, Array | None]:
        """Return the heads with their norms, and the norm of rotated queries."""
        config, eps = self._config, self._rotations.norm_eps(spec.rope)
        heads: Heads = Heads(config.num_attention_heads, spec.kv_heads, spec.head_dim, eps=eps)
        if config.qk_norm == "unit" and spec.rope is not None:
            gain = self._ops.array(np.ones(config.head_dim, self._source.dtype))
            return heads._replace(q_norm=gain, k_norm=gain), None
        if spec.q_norm is not None and not spec.kv_heads:
            return heads._replace(q_norm=self._gain(spec.q_norm)), None
        if spec.q_norm is None or spec.k_norm is None:
            return heads, None
        if config.qk_norm != "rotated":
            q, k = self._gain(spec.q_norm), self._gain(spec.k_norm)
            v = self._ops.array(np.ones(spec.head_dim, FLOAT32)) if config.v_norm else None
            return heads._replace(q_norm=q, k_norm=k, v_norm=v), None
        # RoPE changes no norm, so k is normalized before it. Scores are sums over elements of
        # q · k: k's gain may be q's.
        q_gain, k_gain = (
            converted(self._source.tensor(f"{norm.stem}.weight"), FLOAT32)
            for norm in (spec.q_norm, spec.k_norm)
        )
        ones = self._ops.array(np.ones(len(k_gain), self._source.dtype))
        return heads._replace(k_norm=ones), self._ops.array(q_gain * k_gain)

    def _array(self, name: str) -> Array:
        """Return a parameter that is not packed, on the device."""
        return self._ops.array(self._source.tensor(name))


def build_layers(build: Builder, layout: Layout) -> tuple[Norm, list[Layer]]:
    """Build the norm before the first layer, and the layers, the last one with the final norm."""
    firsts = [*(layer[0].before for layer in layout.layers), layout.norm]
    first = build.norm(firsts[0])
    return first, [build.layer(*pair) for pair in zip(layout.layers, firsts[1:], strict=True)]


def _positions(config: ModelConfig, source: ParameterSource) -> HostArray | None:
    """Return the table added to token embeddings by position and type: the positions of each type
    in turn, [token_types · max_position_embeddings, hidden].
    """
    if config.learned_positions_offset is None:
        return None
    # A view that begins at position 0; OPT's first rows once stood for padding.
    positions = source.tensor("positions.weight")[config.learned_positions_offset :]
    if not config.token_types:
        return positions
    types = converted(source.tensor("token_types.weight"), FLOAT32)
    wide = converted(positions, FLOAT32)
    return converted(np.concatenate([wide + each for each in types]), source.dtype)


def _weight(source: ParameterSource, spec: NormSpec) -> HostArray:
    """Return a norm's weight; ones if it has none."""
    if not spec.weight:
        return np.ones(spec.width, source.dtype)
    return source.tensor(f"{spec.stem}.weight")


def _xielu(
    source: ParameterSource, vectors: tuple[VectorSpec, ...]
) -> tuple[float, float, float] | None:
    """Return an xIELU's numbers; two are stored as what a softplus makes them of."""
    if not vectors:
        return None
    positive, negative, linear = (float(source.tensor(v.name)[0]) for v in vectors)
    bent = (math.log1p(math.exp(value)) for value in (positive, negative))
    return next(bent), linear + next(bent), linear
