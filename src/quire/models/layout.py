"""A model's layers as data; torch-free.

Each linear layer, norm and table is declared here once: its name, parts, bias, and how tensor
parallelism cuts it. Loading, building, sharding, quantizing, adapters and estimates of memory and
cost read these declarations (`models.specs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

from msgspec.structs import replace

from quire.core.layers import DraftHeadConfig, LatentConfig, MoEConfig, SubLayerKind, grouped_runs
from quire.core.model_config import Activation, ModelConfig
from quire.models.parameters import Cut, Parameter, dealt
from quire.models.recurrent_specs import recurrent_spec
from quire.models.specs import (
    AttentionSpec,
    ClassifierSpec,
    FusionSpec,
    LatentSpec,
    LayerSpec,
    LinearSpec,
    Mixer,
    MLPSpec,
    MoESpec,
    NormSpec,
    OwnInputSpec,
    OwnInputsSpec,
    SubLayerSpec,
    VectorSpec,
)

XIELU = ("positive", "negative", "linear")


class Layout:
    """The declarations of one model, or of a pipeline stage of it (`ModelConfig.layer_run`).

    Attributes:
        tables: rows that are looked up: of embeddings, learned positions, token types.
        embed_norm: behind their sum.
        layers: of the model, in order.
        norm: behind the last layer.
        head: what makes logits; a tied one is the embedding's weight.
        classifier: of a classification head, where there is one.
        fusion: before the layers of a draft head.
        own_inputs: the embeddings that layers have of their own, in the first stage.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        hidden = config.hidden_size
        vocab = config.vocab_size if config.vocab_run is None else config.vocab_run[1]
        draft = config.draft_head
        self.fusion = None if draft is None else self._fusion(draft)
        first, last = config.in_first_stage, config.in_last_stage
        tied = config.tie_word_embeddings
        # Its lookups are of the packed head's numbers, so the first stage has that, too.
        has_head = config.lm_head and (last or (first and tied))
        self.tables = []
        embeds = first or (has_head and tied) or (config.head_embeds and last)
        if vocab and embeds and (draft is None or draft.own_embedding):
            self.tables.append(self._table("embed", vocab, "rows"))
        if first and (offset := config.learned_positions_offset) is not None:
            self.tables.append(self._table("positions", config.max_position_embeddings + offset))
        if first and config.token_types:
            self.tables.append(self._table("token_types", config.token_types))
        self.embed_norm = self._norm("embed_norm") if first else None
        self.own_inputs = self._own_inputs(vocab) if config.own_input and first else None
        self.layers = [self._layer(index) for index in config.layers]
        self.norm = self._norm("norm") if last else None
        self.head = None
        if has_head:
            stem = "embed" if tied else "lm_head"
            rows = vocab if draft is None else draft.vocab_size
            self.head = LinearSpec(stem, (rows,), hidden, config.lm_head_bias, cut="rows")
        self.classifier = self._classifier() if config.num_labels and last else None

    def parameters(self) -> Iterator[Parameter]:
        """Return all parameters in the order of the computation; a tied lm_head is not one."""
        yield from self.tables
        head = None if self._config.tie_word_embeddings else self.head
        sublayers = (sublayer for layer in self.layers for sublayer in layer)
        specs = (self.embed_norm, self.own_inputs, self.fusion, *sublayers, self.norm, head)
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

    def _own_inputs(self, vocab: int) -> OwnInputsSpec:
        width = self._config.num_hidden_layers * self._config.own_input
        return OwnInputsSpec(
            self._table("own_embed", vocab, "rows", width),
            LinearSpec("own_project", (width,), self._config.hidden_size, False),
            NormSpec("own_norm", self._config.own_input),
        )

    def _table(self, stem: str, rows: int, cut: Cut = "", width: int = 0) -> Parameter:
        shape = (rows, width or self._config.hidden_size)
        return Parameter(f"{stem}.weight", shape, (rows,), "table", cut)

    def _norm(self, stem: str, prefix: str = "") -> NormSpec | None:
        """Return the norm at this position, if the model has one there."""
        config = self._config
        if stem not in config.norms or f"{prefix}{stem}" in config.missing_norms:
            return None
        weight = config.norm_weights
        bias = weight and config.norm == "layer_norm" and config.norm_bias
        return NormSpec(f"{prefix}{stem}", config.hidden_size, bias, weight=weight)

    def _layer(self, index: int) -> LayerSpec:
        kinds, last = self._config.kinds(index), self._config.parallel - 1
        found = [self._sublayer(f"layers.{index}.", index, kind) for kind in kinds]
        for i in range(last):
            found[i] = replace(found[i], parallel=True)
            if not self._config.parallel_norms:
                found[i + 1] = replace(found[i + 1], before=None)
        if self._config.layer_factors:
            found[-1] = replace(found[-1], factor=VectorSpec(f"layers.{index}.end.factor", 1))
        return tuple(found)

    def _sublayer(self, prefix: str, index: int, kind: SubLayerKind) -> SubLayerSpec:
        name = kind if kind in ("mlp", "own_input") else "attn"
        before, after, total = (
            self._norm(f"{name}_{stem}", prefix) for stem in ("norm", "post_norm", "sum_norm")
        )
        mixer = self._with_factors(prefix, self._mixer(prefix, index, kind))
        apart = isinstance(mixer, MoESpec) and bool(mixer.norms)
        return SubLayerSpec(None if apart else before, mixer, after, total)

    def _with_factors(self, prefix: str, mixer: Mixer) -> Mixer:
        """Return the declaration with the factors of its linear layers' results."""
        factors = self._config.row_factors
        changes: dict[str, Any] = {}
        for name in mixer.__struct_fields__ if factors else ():
            linear = getattr(mixer, name)
            if isinstance(linear, LinearSpec):
                found = factors.get(linear.stem.removeprefix(prefix), ())
                changes[name] = replace(linear, factors=found)
        return replace(mixer, **changes)

    def _mixer(self, prefix: str, index: int, kind: SubLayerKind) -> Mixer:
        config = self._config
        if kind == "recurrent":
            assert config.recurrent is not None, "the model has recurrent layers"
            return recurrent_spec(f"{prefix}recurrent", config.recurrent, config.hidden_size)
        if kind == "attention":
            if config.latent is not None:
                return self._latent(f"{prefix}attn", config.latent)
            return self._attention(prefix, index)
        if kind == "own_input":
            return self._own_input(prefix, index)
        if config.moe is not None and config.moe.in_layer(index):
            return self._moe(f"{prefix}mlp", config.moe)
        width = config.intermediate_size
        if config.borrower_mlp is not None and config.borrows(index):
            width = config.borrower_mlp
        return self._mlp(f"{prefix}mlp", width, config.mlp_bias)

    def _own_input(self, prefix: str, index: int) -> OwnInputSpec:
        hidden, width = self._config.hidden_size, self._config.own_input
        activation = cast("Activation", self._config.activation.removesuffix("_mul"))
        gate = LinearSpec(f"{prefix}own_input.gate", (width,), hidden, False, activation=activation)
        out = LinearSpec(f"{prefix}own_input.out", (hidden,), width, False)
        return OwnInputSpec(gate, out, index * width)

    def _attention(self, prefix: str, index: int) -> AttentionSpec:
        config, stem = self._config, f"{prefix}attn"
        kv_heads, dim = config.kv_shape(index)
        q, kv = config.num_attention_heads * dim, kv_heads * dim
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
        if config.qkv_by_head:
            widths = q // kv_heads, dim, dim
            runs = grouped_runs(0, widths, kv_heads)
            qkv = replace(qkv, parts=(q + 2 * kv,), unit=sum(widths), runs=tuple(runs))
        if config.output_gate == "of_q":
            # Each head of q, then of the gate; the gate is moved to the end.
            runs = grouped_runs(0, (dim, dim), config.num_attention_heads)
            heads = config.num_attention_heads
            runs = [*runs[:heads], (2 * q, 2 * kv), *runs[heads:]]
            qkv = replace(qkv, parts=(2 * q, kv, kv), runs=tuple(runs))
        if config.borrows(index):
            kv_heads, k_norm = 0, None
            qkv = replace(qkv, stem=f"{stem}.q", parts=(q,))
        elif config.values_are_keys and config.window(index) is None:
            qkv = replace(qkv, stem=f"{stem}.qkk")
        gate, each = None, 1 if config.output_gate == "per_head" else dim
        if config.output_gate in ("own", "per_head"):
            rows = config.num_attention_heads * each
            gate = LinearSpec(f"{stem}.gate", (rows,), hidden, False, "rows", each)
        return AttentionSpec(
            qkv,
            q_norm,
            k_norm,
            sinks,
            *self._output(stem, "out", q, config.output_bias, dim),
            config.window(index),
            rope,
            kv_heads,
            dim,
            gate,
        )

    def _latent(self, stem: str, latent: LatentConfig) -> LatentSpec:
        config, hidden, rope = self._config, self._config.hidden_size, self._config.rope
        heads, rank, tail = config.num_attention_heads, latent.q_rank, latent.rope_dim
        turned = tail if rope is not None and rope.interleaved else 0
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
        gated, activation = config.gated_mlp, None if config.xielu else config.activation
        name, parts = f"{stem}.{'gate_up' if gated else 'up'}", (width,) * (1 + gated)
        return MLPSpec(
            LinearSpec(name, parts, hidden, bias, "rows", activation=activation, experts=experts),
            *self._output(stem, "down", width, bias, experts=experts),
            tuple(VectorSpec(f"{stem}.xielu.{name}", 1) for name in XIELU if config.xielu),
        )

    def _output(
        self, stem: str, name: str, columns: int, bias: bool, unit: int = 1, experts: int = 0
    ) -> tuple[NormSpec | None, LinearSpec]:
        """Return the last product of a sub-layer, and the norm before it, if it has one."""
        config, rows, name = self._config, self._config.hidden_size, f"{stem}.{name}"
        if not config.sub_norms:
            return None, LinearSpec(name, (rows,), columns, bias, "columns", unit, experts=experts)
        rank, ranks = config.norm_rank or (0, 1)
        linear = LinearSpec(
            name, (dealt(rows, rank, ranks)[1],), ranks * columns, bias, "rows", experts=experts
        )
        return NormSpec(f"{stem}.sub_norm", ranks * columns), linear

    def _moe(self, stem: str, moe: MoEConfig) -> MoESpec:
        hidden, count = self._config.hidden_size, moe.num_experts
        experts = self._mlp(f"{stem}.experts", moe.intermediate_size, moe.bias, count)
        router = LinearSpec(f"{stem}.router", (count,), hidden, moe.router_bias, kind="router")
        correction = VectorSpec(f"{stem}.router.correction", count)
        shared = None
        if moe.shared_size:  # behind a gate they are one expert
            shared = self._mlp(f"{stem}.shared", moe.shared_size, False, int(moe.shared_gate))
        gate = LinearSpec(f"{stem}.shared_gate", (1,), hidden, False, kind="router")
        names = "router", "experts", "shared", "experts_post", "shared_post"
        return MoESpec(
            router,
            correction if moe.correction else None,
            experts.up,
            experts.down,
            gate if moe.shared_gate else None,
            shared,
            VectorSpec(f"{stem}.router.factors", count) if moe.apart else None,
            tuple(NormSpec(f"{stem}.{name}_norm", hidden) for name in names if moe.apart),
        )

    def _classifier(self) -> ClassifierSpec:
        config, hidden = self._config, self._config.hidden_size
        inner, labels = config.classifier_activation, (config.num_labels,)
        bias = inner is not None or config.projection_bias
        out = LinearSpec("head.out", labels, hidden, bias, kind="head")
        if inner is None:
            return None, None, out
        # tanh is no epilogue, but an op of its own.
        activation, bias = None if inner == "tanh" else inner, config.classifier_bias
        dense = LinearSpec(
            "head.dense", (hidden,), hidden, bias, activation=activation, kind="head"
        )
        return dense, self._norm("head.norm"), out


def head_name(model: ModelConfig) -> str:
    """Return the name of the parameter that makes logits."""
    return "embed.weight" if model.tie_word_embeddings else "lm_head.weight"


@lru_cache(maxsize=8)
def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the computation; a tied lm_head is not one.

    Kept for the last few models: a search over configurations asks thousands of times.
    """
    return tuple(Layout(config).parameters())
