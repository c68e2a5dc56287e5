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
from quire.models.parameters import Cut, Kind, Parameter, Run


class NormSpec(msgspec.Struct, frozen=True):
    """A norm over rows of `width`."""

    stem: str
    width: int
    bias: bool = False
    cut: Cut = ""

    def parameters(self) -> Iterator[Parameter]:
        shape = (self.width,)
        yield Parameter(f"{self.stem}.weight", shape, shape, "norm", self.cut)
        if self.bias:
            yield Parameter(f"{self.stem}.bias", shape, shape, "bias")


class LinearSpec(msgspec.Struct, frozen=True):
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
    factors: tuple[float, ...] = ()
    pieces: tuple[int, ...] = ()

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
            self.factors,
            self.pieces,
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


class AttentionSpec(msgspec.Struct, frozen=True):
    """Attention; `q_norm` and `k_norm` are as wide as a head, or as all heads of q, or of k.
    `sinks` has a score per head; `sub_norm` stands before `out`. With `kv_heads` 0 it reads
    the keys and values of another layer."""

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

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | None, ...]:
        return self.qkv, self.q_norm, self.k_norm, self.sinks, self.sub_norm, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return (self.qkv,)


class LatentSpec(msgspec.Struct, frozen=True):
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

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | None, ...]:
        return self.q_down, self.q_norm, self.q, self.kv, self.norm, self.heads, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        """Return the layers that read the sub-layer's input."""
        return self.q_down or self.q, self.kv


class RecurrentSpec(msgspec.Struct, frozen=True):
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
    conv: ConvSpec
    out: LinearSpec
    rate: VectorSpec | None = None
    bias: VectorSpec | None = None
    skip: VectorSpec | None = None
    norm: NormSpec | None = None
    decay: tuple[LinearSpec, ...] = ()
    gate: tuple[LinearSpec, ...] = ()

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | ConvSpec | None, ...]:
        products = self.inner, *self.decay, *self.gate
        return *products, self.conv, self.rate, self.bias, self.skip, self.norm, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return self.inner, *self.decay[:1], *self.gate[:1]


class MLPSpec(msgspec.Struct, frozen=True):
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


class MoESpec(msgspec.Struct, frozen=True):
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
    shared: MLPSpec | None
    shared_gate: LinearSpec | None
    factors: VectorSpec | None = None
    norms: tuple[NormSpec, ...] = ()

    @property
    def children(self) -> tuple[LinearSpec | NormSpec | VectorSpec | None, ...]:
        shared = self.shared.children if self.shared else ()
        products = self.router, self.correction, self.up, self.down, self.shared_gate, *shared
        return *products, self.factors, *self.norms

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        """Return the linear layers that read the sub-layer's input."""
        shared = self.shared.up if self.shared else None
        found = self.router, self.up, shared, self.shared_gate
        return tuple(reader for reader in found if reader is not None)


class OwnInputSpec(msgspec.Struct, frozen=True):
    """What adds a layer's own embedding: out(activation(gate(residual)) · embedding).

    Attributes:
        first: its first column among the embeddings of all layers.
    """

    gate: LinearSpec
    out: LinearSpec
    first: int

    @property
    def children(self) -> tuple[LinearSpec, ...]:
        return self.gate, self.out

    @property
    def readers(self) -> tuple[LinearSpec, ...]:
        return (self.gate,)


class OwnInputsSpec(msgspec.Struct, frozen=True):
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


class FusionSpec(msgspec.Struct, frozen=True):
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


Mixer = AttentionSpec | LatentSpec | RecurrentSpec | MLPSpec | MoESpec | OwnInputSpec


class SubLayerSpec(msgspec.Struct, frozen=True):
    """residual + after(mixer(before(residual))), or the norm `total` of that sum.

    With `parallel`, the next sub-layer reads before(residual) too, and has no `before`. `factor`
    has one number, by which the sum is multiplied.
    """

    before: NormSpec | None
    mixer: Mixer
    after: NormSpec | None
    total: NormSpec | None
    parallel: bool = False
    factor: VectorSpec | None = None

    def parameters(self) -> Iterator[Parameter]:
        for child in (self.before, *self.mixer.children, self.after, self.total, self.factor):
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
