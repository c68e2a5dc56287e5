"""Words for weights and activations that every provider shares."""

from __future__ import annotations

from typing import Literal, Protocol

from quire.core.model_config import Activation

Epilogue = Literal["none"] | Activation
"""The activation that `linear` applies to its result."""
GATED_BY: dict[
    str, Literal["silu_mul", "gelu_tanh_mul", "gelu_mul", "swigluoai_mul", "relu2_mul"]
] = {
    "silu": "silu_mul",
    "gelu_tanh": "gelu_tanh_mul",
    "gelu": "gelu_mul",
    "swigluoai": "swigluoai_mul",
    "relu2": "relu2_mul",
}
"""Activation → the gated form, which halves the columns: [gate, up] → activation(gate) · up."""
GATED: frozenset[Epilogue] = frozenset(GATED_BY.values())


class LinearWeight(Protocol):
    """What a provider's `pack_linear` makes, for its own `linear` and `logits` only."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return [out, in]."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that a product reads."""
