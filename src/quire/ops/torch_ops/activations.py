"""Activations in plain torch, composed of functions that round every element alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from quire.core.model_config import Activation

_Function = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """Return x · Φ(x), Φ by the error function; computed in float32."""
    wide = x.float()
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return GELU by its tanh approximation (GPT-2's `gelu_new`); computed in float32."""
    wide = x.float()
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 · x) (CLIP); computed in float32."""
    wide = x.float()
    return (wide / (1.0 + torch.exp(-1.702 * wide))).to(x.dtype)


def relu2(x: Tensor) -> Tensor:
    """Return max(x, 0)², rounded once (So et al. 2021)."""
    return torch.relu(x.float()).square().to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """Return x · sigmoid(x) of float32."""
    return x / (1.0 + torch.exp(-x))


def gated(activate: _Function) -> _Function:
    """Return a function of [gate; up], [T, 2 · width]: activate(gate) · up in float32, rounded
    once."""

    def product(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (activate(gate) * up).to(gate_up.dtype)

    return product


def swigluoai_mul(gate_up: Tensor) -> Tensor:
    """Return gate · sigmoid(1.702 · gate) · (up + 1) of [T, 2 · width], as in gpt-oss.

    gate is at most 7, up within ±7; computed in float32, rounded once.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (gate / (1.0 + torch.exp(-1.702 * gate)) * (up + 1.0)).to(gate_up.dtype)


ACTIVATIONS: dict[Activation, _Function] = {
    "silu_mul": gated(silu),
    "gelu_tanh_mul": gated(gelu_tanh),
    "gelu_mul": gated(gelu),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": torch.relu,
    "relu2": relu2,
    "swigluoai_mul": swigluoai_mul,
    "relu2_mul": gated(relu2),
    "quick_gelu": quick_gelu,
}


def activation(x: Tensor, kind: Activation) -> Tensor:
    """Return the activation of x [..., cols]; a gated one halves the columns."""
    return ACTIVATIONS[kind](x)
