"""A layer: sub-layers, each with its norms, along one residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from quire.layers.norm import Norm, Scale
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache, LayerStates
from quire.system.records import dataclass

Cache = KVCache | LayerStates
"""What a sub-layer keeps of earlier tokens."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A step's tokens, as sub-layers see them.

    Attributes:
        positions: int64 [T].
        meta: where their keys and values are and go.
        adapter: see `Ops.lora_add`.
        joined: normed embeddings that a draft head's first attention also reads, [T, hidden].
        rotations: float32 [T, rotary_dim] for positions 0 to T - 1, in place of each attention's
            own table.
        own: the embeddings that layers have of their own, [T, all layers' columns].
        windows: in place of `meta` for attention with a window, which then sees a whole sequence
            of it.
    """

    positions: Array
    meta: AttentionMetadata
    adapter: Array | None = None
    joined: Array | None = None
    rotations: Array | None = None
    own: Array | None = None
    windows: AttentionMetadata | None = None


Rows = tuple[Array, Array | None]
"""Tokens, int64 [S] below T, and their adapters."""


class Mixer(Protocol):
    """What a sub-layer computes, in two steps.

    Attributes:
        mixes: whether a token's result depends on other tokens.
    """

    mixes: bool

    def mix(self, ops: Ops, x: Array, cache: Any, tokens: Tokens) -> Array:
        """Compute what depends on other tokens: [T, hidden] → [T, inner].

        Args:
            cache: a `Cache` of the mixer's kind; anything if it does not mix.
        """

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Compute the rest, each token alone: [T, inner] → [T, hidden]."""


@dataclass(frozen=True, slots=True)
class SubLayer:
    """x, residual → join(after(mixer(x)), residual).

    Attributes:
        after: behind the mixer.
        join: behind the residual sum; makes the next sub-layer's x.
        rejoins: the normed sum is the next residual stream, too (BERT).
        parallel: the next sub-layer's x is this one's (Cohere); `join` only adds.
        branch: makes that x of the residual stream before the sum, instead (GPT-NeoX).
    """

    mixer: Mixer
    after: Norm | Scale
    join: Norm
    rejoins: bool = False
    parallel: bool = False
    branch: Norm | None = None

    def finish(
        self, ops: Ops, y: Array, residual: Array, adapter: Array | None = None
    ) -> tuple[Array, Array]:
        """Return what `join` gives, and the residual stream, for what was mixed, [T, inner]."""
        y = self.after.forward(ops, self.mixer.project(ops, y, adapter))
        y, total = self.join.add_forward(ops, y, residual)
        return y, y if self.rejoins else total


class Layer:
    """Sub-layers, one after another."""

    __slots__ = ("_last_mix", "num_caches", "sublayers")

    def __init__(self, sublayers: Sequence[SubLayer]) -> None:
        self.sublayers = sublayers
        mixing = [i for i, s in enumerate(sublayers) if s.mixer.mixes]
        self.num_caches = len(mixing)
        self._last_mix = mixing[-1] if mixing else 0

    @property
    def following(self) -> Norm:
        """Return the norm that makes the next layer's x of the residual stream."""
        return self.sublayers[-1].join

    def forward(
        self,
        ops: Ops,
        x: Array,
        residual: Array,
        caches: Sequence[Cache],
        tokens: Tokens,
        rows: Rows | None = None,
    ) -> tuple[Array, Array]:
        """Compute the layer for all tokens, or from its last mixing on for `rows` alone.

        Args:
            caches: one for each sub-layer that mixes.

        Returns:
            x and the residual stream, [T, hidden] or [S, hidden].
        """
        adapter, left = tokens.adapter, iter(caches)
        for i, sublayer in enumerate(self.sublayers):
            cache = next(left) if sublayer.mixer.mixes else None
            y = sublayer.mixer.mix(ops, x, cache, tokens)
            if rows is not None and i == self._last_mix:
                wanted, adapter = rows
                y, residual = ops.embedding(wanted, y), ops.embedding(wanted, residual)
                if sublayer.parallel:
                    x = ops.embedding(wanted, x)
                if tokens.own is not None:
                    tokens = replace(tokens, own=ops.embedding(wanted, tokens.own))
            if sublayer.branch is not None:
                x = sublayer.branch.forward(ops, residual)
            y, residual = sublayer.finish(ops, y, residual, adapter)
            if not sublayer.parallel:
                x = y
        return x, residual
