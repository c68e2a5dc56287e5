"""Words for weights and activations that every provider shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from quire.core.config import Activation

Epilogue = Literal["none"] | Activation
"""The activation that `linear` applies to its result."""
GATED_BY: dict[str, Literal["silu_mul", "gelu_tanh_mul", "gelu_mul", "swigluoai_mul"]] = {
    "silu": "silu_mul",
    "gelu_tanh": "gelu_tanh_mul",
    "gelu": "gelu_mul",
    "swigluoai": "swigluoai_mul",
}
"""Activation → the gated form, which halves the columns: [gate, up] → activation(gate) · up."""
GATED: frozenset[Epilogue] = frozenset(GATED_BY.values())
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
        """Whether logits decide, where there is no bias; else scores do."""
        return self.num_groups == 1 or self.group_score == "max"


class LinearWeight(Protocol):
    """What a provider's `pack_linear` makes, for its own `linear` and `logits` only."""

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
