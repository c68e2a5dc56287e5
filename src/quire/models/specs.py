"""Declarations of layers: what `models.layout.Layout` makes of a `ModelConfig`; torch-free.

A layer is a list of sub-layers; a new kind of sub-layer is one more class here and one more method
of `models.builder.Builder`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from quire.core.layers import RecurrentConfig
from quire.core.model_config import Activation, RopeConfig
from quire.models.parameters import Cut, Kind, Parameter, RowForm


class NormSpec(msgspec.Struct, frozen=True):
    """A norm over rows of `width`; without `weight` it has no parameters."""

    stem: str
    width: int
    bias: bool = False
    cut: Cut = ""
    weight: bool = True

    def parameters(self) -> Iterator[Parameter]:
        shape = (self.width,)
        if not self.weight:
            return
        yield Parameter(f"{self.stem}.weight", shape, shape, "norm", self.cut)
        if self.bias:
            yield Parameter(f"{self.stem}.bias", shape, shape, "bias")


class LinearSpec(RowForm, frozen=True):
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

    @property
    def name(self) -> str:
        return f"{self.stem}.weight"

    @property
    def gated(self) -> bool:
        return self.activation is not None and self.activation.endswith("_mul")

    @property
    def weight(self) -> Parameter:
        parts = self.parts * max(1, self.experts)
        shape = sum(parts), self.columns
        rows = {name: getattr(self, name) for name in RowForm.__struct_fields__}
        return Parameter(
            self.name, shape, parts, self.kind, self.cut, self.unit, self.gated, **rows
        )

    def parameters(self) -> Iterator[Parameter]:
        yield self.weight
        if self.bias:
            shape = self.weight.shape[:1]
            yield replace(
                self.weight, name=f"{self.stem}.bias", shape=shape, kind="bias", gated=False
            )


class VectorSpec(msgspec.Struct, frozen=True):
    """Numbers that stay float32."""

    name: str
    width: int
    cut: Cut = ""

    def parameters(self) -> Iterator[Parameter]:
        yield Parameter(self.name, (self.width,), (self.width,), "exact", self.cut)


class ConvSpec(msgspec.Struct, frozen=True):
    """A causal convolution of each channel over `width` tokens; `parts` are channels."""

    stem: str
    parts: tuple[int, ...]
    width: int
    bias: bool
    cut: Cut = ""

    @property
    def channels(self) -> int:
        return sum(self.parts)

    def parameters(self) -> Iterator[Parameter]:
        shape = self.channels, self.width
        yield Parameter(f"{self.stem}.weight", shape, self.parts, "exact", self.cut)
        if self.bias:
            yield Parameter(f"{self.stem}.bias", shape[:1], self.parts, "exact", self.cut)


Leaf = NormSpec | LinearSpec | VectorSpec | ConvSpec


class Spec(msgspec.Struct, frozen=True):
    """A declaration made of others: those among its fields, in the order of the computation."""

    def leaves(self) -> Iterator[Leaf]:
        """Yield the declarations that have parameters of their own."""
        return _leaves(tuple(getattr(self, name) for name in self.__struct_fields__))

    def parameters(self) -> Iterator[Parameter]:
        for leaf in self.leaves():
            yield from leaf.parameters()


def _leaves(value: object) -> Iterator[Leaf]:
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, Spec):
        yield from value.leaves()
    elif isinstance(value, tuple):
        for each in value:
            yield from _leaves(each)


class AttentionSpec(Spec, frozen=True):
    """Attention; `q_norm` and `k_norm` are as wide as a head, or as all heads of q, or of k.
    `sinks` has a score per head; `sub_norm` stands before `out`; `gate` makes the output gate,
    unless `qkv` does. With `kv_heads` 0 it reads the keys and values of another layer."""

    qkv: LinearSpec
    q_norm: NormSpec | None
    k_norm: NormSpec | None
    sinks: VectorSpec | None
    sub_norm: NormSpec | None
    out: LinearSpec
    window: int | None
    rope: RopeConfig | None
    kv_heads: int
    head_dim: int
    gate: LinearSpec | None = None


class LatentSpec(Spec, frozen=True):
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
    rope: RopeConfig | None


class RecurrentSpec(Spec, frozen=True, kw_only=True):
    """A recurrent layer.

    Attributes:
        inner: reads the sub-layer's input; its first rows, or those behind the gate, feed `conv`.
        rate: logarithm of how fast a head forgets.
        bias: of what a step adds to it.
        skip: of a head's input in its result (Mamba-2).
        norm: of the result, with a gate.
        decay, gate: of Kimi Delta Attention: both products that make decays, and the gate.
    """

    config: RecurrentConfig
    inner: LinearSpec
    decay: tuple[LinearSpec, ...] = ()
    gate: tuple[LinearSpec, ...] = ()
    conv: ConvSpec
    rate: VectorSpec | None = None
    bias: VectorSpec | None = None
    skip: VectorSpec | None = None
    norm: NormSpec | None = None
    out: LinearSpec


class MLPSpec(Spec, frozen=True):
    """A feed-forward; where it is gated, `up` is gate and up in one. `sub_norm` stands before
    `down`, and so does an xIELU, which has three numbers."""

    up: LinearSpec
    sub_norm: NormSpec | None
    down: LinearSpec
    xielu: tuple[VectorSpec, ...] = ()


class MoESpec(Spec, frozen=True):
    """A mixture of experts, and the experts that every token passes, if there are some.

    Attributes:
        correction: of the router's choice.
        up, down: of all experts.
        shared_gate: one logit per token, whose sigmoid is the weight of `shared`.
        factors: of the weights of experts.
        norms: in front of the router, of the experts and of `shared`, and behind the last two, with
            `MoEConfig.apart`.
    """

    router: LinearSpec
    correction: VectorSpec | None
    up: LinearSpec
    down: LinearSpec
    shared_gate: LinearSpec | None
    shared: MLPSpec | None
    factors: VectorSpec | None = None
    norms: tuple[NormSpec, ...] = ()


class OwnInputSpec(Spec, frozen=True):
    """What adds a layer's own embedding: out(activation(gate(residual)) · embedding).

    Attributes:
        first: its first column among the embeddings of all layers.
    """

    gate: LinearSpec
    out: LinearSpec
    first: int


class OwnInputsSpec(Spec, frozen=True):
    """The embeddings that each layer has of its own: (norm(linear(embedding)) + table[token]) / √2,
    each scaled.

    Attributes:
        norm: of each layer's part.
    """

    table: Parameter
    linear: LinearSpec
    norm: NormSpec

    def parameters(self) -> Iterator[Parameter]:
        yield self.table
        yield from self.linear.parameters()
        yield from self.norm.parameters()


class FusionSpec(Spec, frozen=True):
    """What makes a draft head's input of the target's rows and of embeddings.

    Attributes:
        embed_norm, row_norm: of embeddings, and of rows.
        linear: of an embedding and a row, side by side; in an EAGLE-3 head of several rows.
    """

    embed_norm: NormSpec | None
    row_norm: NormSpec | None
    linear: LinearSpec


Mixer = AttentionSpec | LatentSpec | RecurrentSpec | MLPSpec | MoESpec | OwnInputSpec


class SubLayerSpec(Spec, frozen=True):
    """residual + after(mixer(before(residual))), or the norm `total` of that sum.

    With `parallel`, the next sub-layer reads the same residual: before(residual) too, or behind a
    `before` of its own. `factor`
    has one number, by which the sum is multiplied.
    """

    before: NormSpec | None
    mixer: Mixer
    after: NormSpec | None
    total: NormSpec | None
    parallel: bool = False
    factor: VectorSpec | None = None


LayerSpec = tuple[SubLayerSpec, ...]
ClassifierSpec = tuple[LinearSpec | None, NormSpec | None, LinearSpec]
"""The layer after pooling and its norm, if the model has them, and the layer of labels."""


def linears(layer: LayerSpec) -> list[LinearSpec]:
    """Return the linear layers in order of computation."""
    leaves = (leaf for sublayer in layer for leaf in sublayer.leaves())
    return [leaf for leaf in leaves if isinstance(leaf, LinearSpec) and leaf.kind == "linear"]


def following_norms(
    spec: LayerSpec, following: NormSpec | None
) -> list[tuple[NormSpec | None, NormSpec | None]]:
    """Return the norms that each sub-layer's successor reads: of the residual stream before the
    sub-layer's sum, and behind that."""
    befores = [*(sublayer.before for sublayer in spec[1:]), following]
    return [
        (before, sublayer.total) if sublayer.parallel else (None, sublayer.total or before)
        for sublayer, before in zip(spec, befores, strict=True)
    ]
