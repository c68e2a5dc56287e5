"""A mixture of experts in the MLP's place."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.dtypes import FLOAT32
from quire.core.layers import MoEConfig, RouteSpec
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.mlp import MLP
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.weights import LinearWeight


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forwards alike: gate and up of all, and down of all."""

    up: LinearWeight
    down: LinearWeight


class MoE:
    """Each token through the experts that the router chooses, by their weights.

    Args:
        correction: added to the router's scores for the choice alone, float32 [experts].
        shared: what every token passes, too: an MLP, or one expert whose weight is the sigmoid of
            the logit that `shared_gate` makes.
    """

    mixes = False
    __slots__ = ("config", "correction", "experts", "router", "shared", "shared_gate")

    def __init__(
        self,
        config: MoEConfig,
        router: Linear,
        experts: Experts,
        *,
        correction: Array | None = None,
        shared: MLP | Experts | None = None,
        shared_gate: Linear | None = None,
    ) -> None:
        self.config = config
        self.router = router
        self.experts = experts
        self.correction = correction
        self.shared = shared
        self.shared_gate = shared_gate

    def mix(self, ops: Ops, x: Array, cache: None, tokens: Tokens) -> Array:
        """Return `x`: each token is computed alone."""
        return x

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, hidden]."""
        route, on_input = self.config.route, self.config.weight_on_input
        summed = FLOAT32 if ops.ranks > 1 else None
        chosen, weights = ops.route(self.router.logits(ops, x), self.correction, route)
        up, down = self.experts.up, self.experts.down
        y = ops.moe(x, chosen, weights, up, down, summed, on_input)
        shared = self.shared
        if isinstance(shared, Experts):
            assert self.shared_gate is not None
            only, weight = ops.route(self.shared_gate.logits(ops, x), None, _GATE)
            y = ops.add(y, ops.moe(x, only, weight, shared.up, shared.down, summed))
        if summed is not None:
            y = ops.all_reduce(y, x.dtype)
        if isinstance(shared, MLP):
            y = ops.add(y, shared.project(ops, x, adapter))
        return y


_GATE = RouteSpec(1, "sigmoid", renormalize=False)
