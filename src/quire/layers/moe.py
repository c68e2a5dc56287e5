"""A mixture of experts in the MLP's place."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.core.dtypes import FLOAT32
from quire.core.layers import MoEConfig, RouteSpec
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.mlp import MLP
from quire.layers.norm import NoNorm, Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forwards alike: gate and up of all, and down of all."""

    up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, slots=True)
class MoENorms:
    """Norms in front of the router, of the experts and of what every token passes, and behind the
    last two."""

    router: Norm
    experts: Norm
    shared: Norm
    experts_post: Norm
    shared_post: Norm


_NONE = MoENorms(*[NoNorm()] * 5)


@dataclass(frozen=True, slots=True, eq=False)
class MoE:
    """Each token through the experts that the router chooses, by their weights.

    Attributes:
        correction: added to the router's scores for the choice alone, float32 [experts].
        factors: of the experts' weights, float32 [experts].
        shared: what every token passes, too: an MLP, or one expert whose weight is the sigmoid of
            the logit that `shared_gate` makes.
        norms: all read the residual stream, through these (`MoEConfig.apart`).
    """

    mixes = False
    config: MoEConfig
    router: Linear
    experts: Experts
    _: KW_ONLY
    correction: Array | None = None
    factors: Array | None = None
    shared: MLP | Experts | None = None
    shared_gate: Linear | None = None
    norms: MoENorms = _NONE

    def mix(self, ops: Ops, x: Array, cache: None, tokens: Tokens) -> Array:
        """Return `x`: each token is computed alone."""
        return x

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, hidden]."""
        route, on_input = self.config.route, self.config.weight_on_input
        summed, norms = FLOAT32 if ops.ranks > 1 else None, self.norms
        logits = self.router.logits(ops, norms.router.forward(ops, x))
        chosen, weights = ops.route(logits, self.correction, route, self.factors)
        up, down = self.experts.up, self.experts.down
        rows = norms.experts.forward(ops, x)
        y = ops.moe(rows, chosen, weights, up, down, summed, on_input)
        shared = self.shared
        if isinstance(shared, Experts):
            assert self.shared_gate is not None
            only, weight = ops.route(self.shared_gate.logits(ops, x), None, _GATE)
            y = ops.add(y, ops.moe(x, only, weight, shared.up, shared.down, summed))
        if summed is not None:
            y = ops.all_reduce(y, x.dtype)
        y = norms.experts_post.forward(ops, y)
        if isinstance(shared, MLP):
            z = shared.project(ops, norms.shared.forward(ops, x), adapter)
            y = ops.add(y, norms.shared_post.forward(ops, z))
        return y


_GATE = RouteSpec(1, "sigmoid", renormalize=False)
