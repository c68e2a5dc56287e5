"""Kinds of layers: latent attention, recurrent layers, experts and routers, draft heads; and
YaRN's magnitude."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from quire.system.records import dataclass


def yarn_magnitude(params: Mapping[str, Any]) -> float:
    """Return YaRN's factor of cosines and sines, which keeps attention as sharp as before.

    Args:
        params: `factor`; optionally `attention_factor`, which is the result, or both `mscale`
            and `mscale_all_dim`.
    """
    factor = params["factor"]
    if (explicit := params.get("attention_factor")) is not None:
        return float(explicit)
    if params.get("mscale") and params.get("mscale_all_dim"):
        both = (yarn_mscale(factor, params[name]) for name in ("mscale", "mscale_all_dim"))
        return next(both) / next(both)
    return yarn_mscale(factor, 1.0)


def yarn_mscale(factor: float, weight: float) -> float:
    """Return by how much YaRN sharpens attention that is stretched by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024).

    Keys and values of all heads are products with one vector per token, its latent. The KV cache
    holds the latent, and one key part with RoPE that all heads share.

    Attributes:
        rank: elements of the latent.
        rope_dim: elements of a key that have RoPE.
        nope_dim: other elements of a head of q and k.
        value_dim: elements of a head of v.
        q_rank: elements of the vector that q is a product with; None if that is the hidden state.
        norm_eps: of the norms of the latent and of that vector.
    """

    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None
    norm_eps: float = 1e-6

    @property
    def row(self) -> int:
        """Return the number of elements of a token's row in the cache."""
        return self.rope_dim + self.rank

    @property
    def head(self) -> int:
        """Return the number of elements of a head of q."""
        return self.rope_dim + self.nope_dim


SubLayerKind = Literal["attention", "recurrent", "mlp", "own_input"]
"""What a layer is made of; "mlp" may be experts, "own_input" adds the layer's own embedding."""
PLAIN_LAYER: tuple[SubLayerKind, ...] = ("attention", "mlp")


class ShortConvConfig(msgspec.Struct, frozen=True, tag=True):
    """A gated causal convolution of few tokens (LFM2): out(c · conv(b · v)).

    Attributes:
        width: tokens that a token's result depends on.
        channels: width of b, c and v.
        bias: of the convolution and of both products.
        divided: each rank has a part of the channels.
    """

    width: int
    channels: int
    bias: bool = False
    divided: bool = False

    def share(self, ranks: int) -> ShortConvConfig | None:
        """Return a rank's part; None if every rank must have all of it."""
        if self.channels % ranks:
            return None
        return replace(self, channels=self.channels // ranks, divided=True)

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a sequence's state: `conv_state_shape`."""
        return ((self.width - 1, self.channels),)


def grouped_runs(first: int, widths: tuple[int, ...], groups: int) -> list[tuple[int, int]]:
    """Return runs of rows (first, count) that bring together each part of `groups` groups.

    Args:
        first: row of the first group.
        widths: rows of each part of a group.
    """
    offsets = [sum(widths[:i]) for i in range(len(widths))]
    return [
        (first + group * sum(widths) + offset, width)
        for offset, width in zip(offsets, widths, strict=True)
        for group in range(groups)
    ]


class DeltaConfig(msgspec.Struct, frozen=True, tag=True):
    """A gated delta rule behind a causal convolution (Qwen3-Next, Kimi Linear).

    Attributes:
        key_heads, value_heads: heads of q and k, and of v; each of the former serves several.
        key_dim, value_dim: elements of a head.
        width: tokens that the convolution reads.
        grouped: checkpoints store q, k, v and the gate head by head, not one after the other.
        gate_rank: elements of the two vectors that the decays, one per row of the state, and the
            gate are products with (Kimi Delta Attention); 0: a head has one decay, and all are
            products with the hidden state.
        divided: each rank has a part of the heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    grouped: bool = False
    gate_rank: int = 0
    divided: bool = False

    def share(self, ranks: int) -> DeltaConfig | None:
        """Return a rank's part; None if every rank must have all of it."""
        if self.key_heads % ranks:
            return None
        keys, values = self.key_heads // ranks, self.value_heads // ranks
        return replace(self, key_heads=keys, value_heads=values, divided=True)

    @property
    def keys(self) -> int:
        """Elements of all heads of k."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Elements of all heads of v."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Elements that the convolution reads: q, k and v."""
        return 2 * self.keys + self.values

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return runs of rows of the first product (first, count) that make q, k, v, the gate, b
        and a of rows that are grouped by key heads."""
        served = self.value_heads // self.key_heads
        return (
            *grouped_runs(0, (self.key_dim,) * 2 + (served * self.value_dim,) * 2, self.key_heads),
            *grouped_runs(self.channels + self.values, (served, served), self.key_heads),
        )

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a sequence's state: `conv_state_shape`, `matrix_state_shape`."""
        matrix = self.value_heads, self.key_dim, self.value_dim
        return (self.width - 1, self.channels), matrix


LARGEST_STEP = 3.4028234663852886e38
"""The largest float32: no limit of a Mamba-2's step sizes. JSON has no infinity."""


class Mamba2Config(msgspec.Struct, frozen=True, tag=True):
    """A state space behind a causal convolution (Mamba-2).

    Attributes:
        heads, head_dim: of x.
        groups, state_dim: of B and C; a group serves heads / groups heads. The result times its
            gate is normalized in as many groups, if `normed`; with `norm_first`, before the gate.
        width: tokens that the convolution reads.
        conv_bias, bias, out_bias: the convolution, the first and the last product have biases.
        limits: of the step sizes.
        divided: each rank has a part of the groups.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    width: int
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    limits: tuple[float, float] = (0.0, LARGEST_STEP)
    normed: bool = True
    norm_first: bool = False
    divided: bool = False

    def share(self, ranks: int) -> Mamba2Config | None:
        """Return a rank's part; None if every rank must have all of it."""
        if self.groups % ranks:
            return None
        heads, groups = self.heads // ranks, self.groups // ranks
        return replace(self, heads=heads, groups=groups, divided=True)

    @property
    def inner(self) -> int:
        """Elements of x, and of the gate."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Elements that the convolution reads: x, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a sequence's state: `conv_state_shape`, `matrix_state_shape`."""
        return (self.width - 1, self.channels), (self.heads, self.state_dim, self.head_dim)


RecurrentConfig = ShortConvConfig | DeltaConfig | Mamba2Config


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries at position p are multiplied by 1 + beta · log(1 + (p + ahead) // length).

    Attributes:
        unrotated: in the layers without RoPE (Llama 4), else in the others (Ministral 3).
    """

    beta: float
    length: int
    ahead: int = 0
    unrotated: bool = False


Scores = Literal["softmax", "sigmoid"]
"""How a router's logits become scores of experts."""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """How a row of router logits chooses experts and weighs their results.

    The `top_k` experts with the largest logits are chosen. With a correction bias, or with groups
    by their "top2", the largest score + bias counts instead. Equal ones are ordered as
    `torch.topk` orders them on a CPU. The bias never enters the weights.

    Attributes:
        top_k: experts per row.
        scores: softmax over all experts, or sigmoid.
        renormalize: divide the weights by their sum. For "softmax" this is the softmax over the
            chosen experts.
        epsilon: added to that sum.
        num_groups: groups of neighbouring experts, of equal size.
        top_groups: groups from which experts may be chosen.
        group_score: a group counts as much as its best expert, or as its two best together.
        scale: factor of all weights.
        band: if not 0, experts are chosen one by one, and the weight of each is its softmax among
            those that are left and not further below it than `band` times the larger of its logit
            and the size of theirs (Phi-3.5-MoE's SparseMixer). Nothing else applies then.
        least: the least number by which the weights are divided.

    Raises:
        ValueError: numbers that do not fit each other.
    """

    top_k: int
    scores: Scores = "softmax"
    renormalize: bool = True
    epsilon: float = 0.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "top2"
    scale: float = 1.0
    band: float = 0.0
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; a row has at least one expert")
        if not 1 <= self.top_groups <= self.num_groups:
            raise ValueError(f"{self.top_groups} groups of {self.num_groups} cannot be chosen")

    def check(self, experts: int) -> None:
        """Raise ValueError if a router with so many logits cannot follow these rules."""
        size, rest = divmod(experts, self.num_groups)
        if rest:
            raise ValueError(f"{experts} experts do not form {self.num_groups} equal groups")
        if self.num_groups > 1 and self.group_score == "top2" and size < 2:
            raise ValueError("groups of one expert have no two best")
        if self.top_k > size * self.top_groups:
            raise ValueError(f"top_k is {self.top_k}, for {size * self.top_groups} experts")

    @property
    def by_logits(self) -> bool:
        """Return whether logits choose the experts, without a bias; else scores do."""
        return self.num_groups == 1 or self.group_score == "max"


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """The mixture of experts in the MLP's place.

    Attributes:
        num_experts: of each sparse layer.
        intermediate_size: inner width of one expert.
        route: how a token chooses experts.
        correction: the router has a bias for the choice (see `RouteSpec`).
        router_bias, bias: the router, the experts have biases.
        weight_on_input: weights multiply the experts' inputs (Llama 4).
        layers: which layers are sparse; None means all. The others have the plain MLP.
        shared_size: inner width of the expert that every token passes; 0 if there is none.
        shared_gate: its result is multiplied by the sigmoid of one more logit (Qwen2-MoE).
        apart: the router, the experts and the shared expert read the residual stream, each behind a
            norm of its own; the results of the last two are normalized, too; and an expert has a
            factor of its weight (Gemma 4).
    """

    num_experts: int
    intermediate_size: int
    route: RouteSpec
    correction: bool = False
    router_bias: bool = False
    bias: bool = False
    weight_on_input: bool = False
    layers: tuple[bool, ...] | None = None
    shared_size: int = 0
    shared_gate: bool = False
    apart: bool = False

    def in_layer(self, layer: int) -> bool:
        return self.layers is None or self.layers[layer]


HeadForm = Literal["nextn", "mtp", "eagle", "eagle3"]
"""Draft heads as in DeepSeek-V3 and GLM-4.5, Qwen3-Next, EAGLE and EAGLE-3 checkpoints."""


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """What a draft head has besides its layers.

    It guesses the token behind the next one, from rows of the target and the next token.

    Attributes:
        form: how rows and embeddings meet, and the names of its tensors (see `models.heads`).
        layer_prefix: of its layers' tensors; "{}" is the layer's number.
        prefix: of its other tensors.
        row_size: width of the target's rows.
        taps: layers of the target whose inputs it reads; () means what the last norm returns.
        vocab_size: tokens that its own lm_head has logits for; 0 uses the target's lm_head.
        own_embedding: it has token embeddings; else it uses the target's.
        fuse_bias: the linear layer that joins rows and embeddings has a bias.
        normed_residual: the residual stream begins with the normed rows (EAGLE-3).
    """

    form: HeadForm
    layer_prefix: str
    prefix: str
    row_size: int
    taps: tuple[int, ...] = ()
    vocab_size: int = 0
    own_embedding: bool = False
    fuse_bias: bool = False
    normed_residual: bool = False

    @property
    def joins_in_attention(self) -> bool:
        """Return whether the first layer's q, k and v read rows and embeddings side by side."""
        return self.form == "eagle3"

    @property
    def has_norms(self) -> bool:
        """Return whether rows and embeddings are normed before they are joined."""
        return self.form != "eagle"
