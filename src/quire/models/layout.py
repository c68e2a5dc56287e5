"""A model's layers as data; torch-free.

Each linear layer, norm and table is declared here once: its name, parts, bias, and how tensor
parallelism cuts it. Loading, building, sharding, quantizing, adapters and estimates of memory and
cost read these declarations. A layer is a list of sub-layers; a new kind of sub-layer is one more
class here and one more method of `models.builder.Builder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from quire.core.config import Activation, ModelConfig, RopeConfig
from quire.core.layers import (
    DeltaConfig,
    DraftHeadConfig,
    LatentConfig,
    MoEConfig,
    RecurrentConfig,
    ShortConvConfig,
    SubLayerKind,
    grouped_runs,
)
from quire.models.parameters import Cut, Kind, Parameter, Run


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A norm over rows of `width`."""

    stem: str
    width: int
    bias: bool = False

    def parameters(self) -> Iterator[Parameter]:
        shape = (self.width,)
        yield Parameter(f"{self.stem}.weight", shape, shape, "norm")
        if self.bias:
            yield Parameter(f"{self.stem}.bias", shape, shape, "bias")


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """A linear layer; attributes as those of `Parameter`, and the activation that follows it.

    With `cut` = "columns" the ranks' products are added up, and the bias is rank 0's. With
    `experts` there are so many of them, in one weight; `parts` and `bias` are those of each.
    """

    stem: str
    parts: tuple[int, ...]
    columns: int
    bias: bool
    cut: Cut = ""
    unit: int = 1
    activation: Activation | None = None
    kind: Kind = "linear"
    experts: int = 0
    paired: int = 0
    tail: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its weight."""
        return f"{self.stem}.weight"

    @property
    def gated(self) -> bool:
        return self.activation is not None and self.activation.endswith("_mul")

    @property
    def weight(self) -> Parameter:
        parts = self.parts * max(1, self.experts)
        return Parameter(
            self.name,
            (sum(parts), self.columns),
            parts,
            self.kind,
            self.cut,
            self.unit,
            self.gated,
            self.experts,
            self.paired,
            self.tail,
            self.runs,
        )

    def parameters(self) -> Iterator[Parameter]:
        yield self.weight
        if self.bias:
            shape = self.weight.shape[:1]
            yield replace(
                self.weight, name=f"{self.stem}.bias", shape=shape, kind="bias", gated=False
            )


@dataclass(frozen=True, slots=True)
class VectorSpec:
    """Numbers that stay float32."""

    name: str
    width: int
    cut: Cut = ""

    def parameters(self) -> Iterator[Parameter]:
        yield Parameter(self.name, (self.width,), (self.width,), "exact", self.cut)


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """A causal convolution of each channel over `width` tokens."""

    stem: str
    channels: int
    width: int
    bias: bool

    def parameters(self) -> Iterator[Parameter]:
        shape = self.channels, self.width
        yield Parameter(f"{self.stem}.weight", shape, shape[:1], "exact")
        if self.bias:
            yield Parameter(f"{self.stem}.bias", shape[:1], shape[:1], "exact")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention; `q_norm` and `k_norm` are as wide as a head, or as all heads of q, or of k.
    `sinks` has a score per head; `sub_norm` stands before `out`."""

    qkv: LinearSpec
    q_norm: NormSpec | None
    k_norm: NormSpec | None
    sinks: VectorSpec | None
    sub_norm: NormSpec | None
    out: LinearSpec
    window: int | None
    rope: RopeConfig | None

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | None, ...]:
        return self.qkv, self.q_norm, self.k_norm, self.sinks, self.sub_norm, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return (self.qkv,)


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Latent attention (see `LatentConfig`).

    Attributes:
        q_down, q_norm: what `q` reads; None if it reads the hidden state.
        q: heads of queries, their rope part last.
        kv: the latent and the shared rope part.
        norm: of the latent.
        heads: of each head its keys without RoPE, and its values; rows of both follow each other.
    """

    q_down: LinearSpec | None
    q_norm: NormSpec | None
    q: LinearSpec
    kv: LinearSpec
    norm: NormSpec
    heads: LinearSpec
    out: LinearSpec
    rope: RopeConfig

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | None, ...]:
        return self.q_down, self.q_norm, self.q, self.kv, self.norm, self.heads, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        """Return the layers that read the sub-layer's input."""
        return self.q_down or self.q, self.kv


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A recurrent layer.

    Attributes:
        inner: reads the sub-layer's input; its first rows, or those behind the gate, feed `conv`.
        rate: logarithm of how fast a head forgets.
        bias: of what a step adds to it.
        skip: of a head's input in its result (Mamba-2).
        norm: of the result, with a gate.
    """

    config: RecurrentConfig
    inner: LinearSpec
    conv: ConvSpec
    rate: VectorSpec | None
    bias: VectorSpec | None
    skip: VectorSpec | None
    norm: NormSpec | None
    out: LinearSpec

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | ConvSpec | None, ...]:
        return self.inner, self.conv, self.rate, self.bias, self.skip, self.norm, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return (self.inner,)


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """A feed-forward; where it is gated, `up` is gate and up in one. `sub_norm` stands before
    `down`."""

    up: LinearSpec
    down: LinearSpec
    sub_norm: NormSpec | None = None

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | None, ...]:
        return self.up, self.sub_norm, self.down

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return (self.up,)


@dataclass(frozen=True, slots=True)
class MoESpec:
    """A mixture of experts, and the experts that every token passes, if there are some.

    Attributes:
        correction: of the router's choice.
        up, down: of all experts.
        shared_gate: one logit per token, whose sigmoid is the weight of `shared`.
    """

    router: LinearSpec
    correction: VectorSpec | None
    up: LinearSpec
    down: LinearSpec
    shared: MLPSpec | None
    shared_gate: LinearSpec | None

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | None, ...]:
        shared = self.shared.children if self.shared else ()
        return self.router, self.correction, self.up, self.down, self.shared_gate, *shared

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        """Return the linear layers that read the sub-layer's input."""
        shared = self.shared.up if self.shared else None
        found = self.router, self.up, shared, self.shared_gate
        return tuple(reader for reader in found if reader is not None)


@dataclass(frozen=True, slots=True)
class FusionSpec:
    """What makes a draft head's input of the target's rows and of embeddings.

    Attributes:
        embed_norm, row_norm: of embeddings, and of rows.
        linear: of an embedding and a row, side by side; in an EAGLE-3 head of several rows.
    """

    embed_norm: NormSpec | None
    row_norm: NormSpec | None
    linear: LinearSpec

    def parameters(self) -> Iterator[Parameter]:
        for child in (self.embed_norm, self.row_norm, self.linear):
            if child is not None:
                yield from child.parameters()


Mixer = AttentionSpec | LatentSpec | RecurrentSpec | MLPSpec | MoESpec


@dataclass(frozen=True, slots=True)
class SubLayerSpec:
    """residual + after(mixer(before(residual))), or the norm `total` of that sum.

    With `parallel`, the next sub-layer reads before(residual) too, and has no `before`.
    """

    before: NormSpec | None
    mixer: Mixer
    after: NormSpec | None
    total: NormSpec | None
    parallel: bool = False

    def parameters(self) -> Iterator[Parameter]:
        for child in (self.before, *self.mixer.children, self.after, self.total):
            if child is not None:
                yield from child.parameters()

    @property
    def linears(self) -> list[LinearSpec]:
        children = (child for child in self.mixer.children if isinstance(child, LinearSpec))
        return [child for child in children if child.kind == "linear"]


LayerSpec = tuple[SubLayerSpec, ...]
ClassifierSpec = tuple[LinearSpec | None, NormSpec | None, LinearSpec]
"""The layer after pooling and its norm, if the model has them, and the layer of labels."""


def linears(layer: LayerSpec) -> list[LinearSpec]:
    """Return the linear layers in order of computation."""
    return [linear for sublayer in layer for linear in sublayer.linears]


class Layout:
    """The declarations of one model.

    Attributes:
        tables: rows that are looked up: of embeddings, learned positions, token types.
        embed_norm: behind their sum.
        layers: of the model, in order.
        norm: behind the last layer.
        head: what makes logits; a tied one is the embedding's weight.
        classifier: of a classification head, where there is one.
        fusion: before the layers of a draft head.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        hidden = config.hidden_size
        vocab = config.vocab_size if config.vocab_run is None else config.vocab_run[1]
        draft = config.draft_head
        self.fusion = None if draft is None else self._fusion(draft)
        self.tables = []
        if draft is None or draft.own_embedding:
            self.tables.append(self._table("embed", vocab, "rows"))
        if (offset := config.learned_positions_offset) is not None:
            self.tables.append(self._table("positions", config.max_position_embeddings + offset))
        if config.token_types:
            self.tables.append(self._table("token_types", config.token_types))
        self.embed_norm = self._norm("embed_norm")
        self.layers = [self._layer(index) for index in range(config.num_hidden_layers)]
        self.norm = self._norm("norm")
        self.head = None
        if config.lm_head:
            stem = "embed" if config.tie_word_embeddings else "lm_head"
            rows = vocab if draft is None else draft.vocab_size
            self.head = LinearSpec(stem, (rows,), hidden, config.lm_head_bias, cut="rows")
        self.classifier = self._classifier() if config.num_labels else None

    def parameters(self) -> Iterator[Parameter]:
        """Return all parameters in the order of the computation; a tied lm_head is not one."""
        yield from self.tables
        head = None if self._config.tie_word_embeddings else self.head
        sublayers = (sublayer for layer in self.layers for sublayer in layer)
        specs = (self.embed_norm, self.fusion, *sublayers, self.norm, head)
        for spec in (*specs, *(self.classifier or ())):
            if spec is not None:
                yield from spec.parameters()

    def _fusion(self, draft: DraftHeadConfig) -> FusionSpec:
        hidden, (embed_norm, row_norm) = self._config.hidden_size, (None, None)
        if draft.has_norms:
            embed_norm, row_norm = (NormSpec(f"fuse.{n}_norm", hidden) for n in ("embed", "row"))
        columns = len(draft.taps) * draft.row_size if draft.taps else hidden + draft.row_size
        linear = LinearSpec("fuse", (hidden,), columns, draft.fuse_bias)
        return FusionSpec(embed_norm, row_norm, linear)

    def _table(self, stem: str, rows: int, cut: Cut = "") -> Parameter:
        shape = (rows, self._config.hidden_size)
        return Parameter(f"{stem}.weight", shape, (rows,), "table", cut)

    def _norm(self, stem: str, prefix: str = "") -> NormSpec | None:
        """Return the norm at this position, if the model has one there."""
        config = self._config
        if stem not in config.norms or f"{prefix}{stem}" in config.missing_norms:
            return None
        bias = config.norm == "layer_norm" and config.norm_bias
        return NormSpec(f"{prefix}{stem}", config.hidden_size, bias)

    def _layer(self, index: int) -> LayerSpec:
        prefix = f"layers.{index}."
        return tuple(self._sublayer(prefix, index, kind) for kind in self._config.kinds(index))

    def _sublayer(self, prefix: str, index: int, kind: SubLayerKind) -> SubLayerSpec:
        name = "mlp" if kind == "mlp" else "attn"
        before, after, total = (
            self._norm(f"{name}_{stem}", prefix) for stem in ("norm", "post_norm", "sum_norm")
        )
        mixer, parallel = self._mixer(prefix, index, kind), self._config.parallel and name == "attn"
        return SubLayerSpec(before, mixer, after, total, parallel)

    def _mixer(self, prefix: str, index: int, kind: SubLayerKind) -> Mixer:
        config = self._config
        if kind == "recurrent":
            assert config.recurrent is not None, "the model has recurrent layers"
            return self._recurrent(f"{prefix}recurrent", config.recurrent)
        if kind == "attention":
            if config.latent is not None:
                return self._latent(f"{prefix}attn", config.latent)
            return self._attention(prefix, index)
        if config.moe is not None and config.moe.in_layer(index):
            return self._moe(f"{prefix}mlp", config.moe)
        return self._mlp(f"{prefix}mlp", config.intermediate_size, config.mlp_bias)

    def _recurrent(self, stem: str, recurrent: RecurrentConfig) -> RecurrentSpec:
        hidden = self._config.hidden_size
        rate = bias = skip = norm = None
        runs: tuple[Run, ...] = ()
        if isinstance(recurrent, ShortConvConfig):
            parts: tuple[int, ...] = (3 * recurrent.channels,)
            width, heads = recurrent.channels, 0
            biases = conv_bias = out_bias = recurrent.bias
        elif isinstance(recurrent, DeltaConfig):
            width, heads = recurrent.values, recurrent.value_heads
            parts = (recurrent.channels, width, heads, heads)
            biases = conv_bias = out_bias = False
            if recurrent.grouped:
                parts, runs = (recurrent.channels + width, 2 * heads), recurrent.runs
            norm = NormSpec(f"{stem}.norm", recurrent.value_dim)
        else:
            width, heads = recurrent.inner, recurrent.heads
            parts = (width + recurrent.channels + heads,)
            biases, conv_bias = recurrent.bias, recurrent.conv_bias
            out_bias = recurrent.out_bias
            skip = VectorSpec(f"{stem}.skip", heads)
            norm = NormSpec(f"{stem}.norm", width) if recurrent.normed else None
        if heads:
            rate, bias = VectorSpec(f"{stem}.rate", heads), VectorSpec(f"{stem}.bias", heads)
        return RecurrentSpec(
            recurrent,
            LinearSpec(f"{stem}.in", parts, hidden, biases, runs=runs),
            ConvSpec(f"{stem}.conv", recurrent.channels, recurrent.width, conv_bias),
            rate,
            bias,
            skip,
            norm,
            LinearSpec(f"{stem}.out", (hidden,), width, out_bias),
        )

    def _attention(self, prefix: str, index: int) -> AttentionSpec:
        config, stem, dim = self._config, f"{prefix}attn", self._config.head_dim
        q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
        hidden, rope = config.hidden_size, config.layer_rope(index)
        joins = config.draft_head is not None and config.draft_head.joins_in_attention
        columns = 2 * hidden if joins and index == 0 else hidden
        paired = rope.rotary_dim if rope is not None and rope.interleaved else 0
        q_norm = k_norm = sinks = None
        if config.qk_norm not in (None, "unit"):
            full = config.qk_norm == "full"
            q_norm = NormSpec(f"{stem}.q_norm", q if full else dim)
            k_norm = NormSpec(f"{stem}.k_norm", kv if full else dim)
        if config.attention_sinks:
            sinks = VectorSpec(f"{stem}.sinks", config.num_attention_heads, "rows")
        qkv = LinearSpec(
            f"{stem}.qkv", (q, kv, kv), columns, config.qkv_bias, "rows", dim, paired=paired
        )
        if config.output_gate:  # each head of q, then of the gate; the gate is moved to the end
            runs = grouped_runs(0, (dim, dim), config.num_attention_heads)
            heads = config.num_attention_heads
            runs = [*runs[:heads], (2 * q, 2 * kv), *runs[heads:]]
            qkv = replace(qkv, parts=(2 * q, kv, kv), runs=tuple(runs))
        return AttentionSpec(
            qkv,
            q_norm,
            k_norm,
            sinks,
            NormSpec(f"{stem}.sub_norm", q) if config.sub_norms else None,
            LinearSpec(f"{stem}.out", (hidden,), q, config.output_bias, "columns", dim),
            config.window(index),
            rope,
        )

    def _latent(self, stem: str, latent: LatentConfig) -> LatentSpec:
        config, hidden, rope = self._config, self._config.hidden_size, self._config.rope
        assert rope is not None, "latent attention has RoPE"
        heads, rank, tail = config.num_attention_heads, latent.q_rank, latent.rope_dim
        turned = tail if rope.interleaved else 0
        down = norm = None
        if rank is not None:
            down = LinearSpec(f"{stem}.q_a", (rank,), hidden, config.qkv_bias)
            norm = NormSpec(f"{stem}.q_a_norm", rank)
        q = LinearSpec(
            f"{stem}.q" if rank is None else f"{stem}.q_b", (heads * latent.head,), rank or hidden,
            False, "rows", latent.head, paired=turned, tail=tail,
        )  # fmt: skip
        kv = LinearSpec(
            f"{stem}.kv_a", (latent.row,), hidden, config.qkv_bias,
            unit=latent.row, paired=turned, tail=tail,
        )  # fmt: skip
        unit, columns = latent.nope_dim + latent.value_dim, heads * latent.value_dim
        return LatentSpec(
            down,
            norm,
            q,
            kv,
            NormSpec(f"{stem}.kv_a_norm", latent.rank),
            LinearSpec(
                f"{stem}.kv_b", (heads * unit,), latent.rank, False, "rows", unit, kind="heads"
            ),
            LinearSpec(
                f"{stem}.out", (hidden,), columns, config.output_bias, "columns", latent.value_dim
            ),
            rope,
        )

    def _mlp(self, stem: str, width: int, bias: bool, experts: int = 0) -> MLPSpec:
        config, hidden = self._config, self._config.hidden_size
        gated, activation = config.gated_mlp, config.activation
        name, parts = f"{stem}.{'gate_up' if gated else 'up'}", (width,) * (1 + gated)
        return MLPSpec(
            LinearSpec(name, parts, hidden, bias, "rows", activation=activation, experts=experts),
            LinearSpec(f"{stem}.down", (hidden,), width, bias, "columns", experts=experts),
            NormSpec(f"{stem}.sub_norm", width) if config.sub_norms else None,
        )

    def _moe(self, stem: str, moe: MoEConfig) -> MoESpec:
        hidden, count = self._config.hidden_size, moe.num_experts
        experts = self._mlp(f"{stem}.experts", moe.intermediate_size, moe.bias, count)
        router = LinearSpec(f"{stem}.router", (count,), hidden, moe.router_bias, kind="router")
        correction = VectorSpec(f"{stem}.router.correction", count)
        shared = None
        if moe.shared_size:  # behind a gate they are one expert
            shared = self._mlp(f"{stem}.shared", moe.shared_size, False, int(moe.shared_gate))
        gate = LinearSpec(f"{stem}.shared_gate", (1,), hidden, False, kind="router")
        return MoESpec(
            router,
            correction if moe.correction else None,
            experts.up,
            experts.down,
            shared,
            gate if moe.shared_gate else None,
        )

    def _classifier(self) -> ClassifierSpec:
        config, hidden = self._config, self._config.hidden_size
        inner, labels = config.classifier_activation, (config.num_labels,)
        out = LinearSpec("head.out", labels, hidden, inner is not None, kind="head")
        if inner is None:
            return None, None, out
        # tanh is no epilogue, but an op of its own.
        activation, bias = None if inner == "tanh" else inner, config.classifier_bias
        dense = LinearSpec(
            "head.dense", (hidden,), hidden, bias, activation=activation, kind="head"
        )
        return dense, self._norm("head.norm"), out


@lru_cache(maxsize=8)
def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the computation; a tied lm_head is not one.

    Kept for the last few models: a search over configurations asks thousands of times.
    """
    return tuple(Layout(config).parameters())
