"""Activations, and the largest logit of a row."""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import begin


@triton.jit
def _tanh(x):
    """Return tanh(x), by a power that cannot overflow."""
    power = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - power) / (1.0 + power)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def _activated(x, kind: tl.constexpr):
    result = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if kind == "silu":
        result = x / (1.0 + tl.exp(-x))
    elif kind == "gelu":
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif kind == "gelu_tanh":
        result = 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))
    elif kind == "quick_gelu":
        result = x / (1.0 + tl.exp(-1.702 * x))
    elif kind == "relu2":
        result = result * result
    else:
        tl.static_assert(kind == "relu")
    return result


@triton.jit
def activated(first, up, kind: tl.constexpr, gated: tl.constexpr):
    """Return kind(first), or kind(first) · up; all float32."""
    if gated and kind == "swigluoai":
        first = tl.minimum(first, 7.0, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL)
        result = first / (1.0 + tl.exp(-1.702 * first)) * (up + 1.0)
    else:
        result = _activated(first, kind)
        if gated:
            result = result * up
    return result


@triton.jit
def activation(
    x, out, width, x_stride, kind: tl.constexpr, gated: tl.constexpr, overlap: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Write kind(x), or kind(gate) · up where x is [gate | up]."""
    begin(overlap)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    live = at < width
    first = tl.load(x + row * x_stride + at, live, 0.0)
    wide = first.to(tl.float32)
    up = wide
    if gated:
        up = tl.load(x + row * x_stride + width + at, live, 0.0).to(tl.float32)
    result = activated(wide, up, kind, gated)
    tl.store(out + row * width + at, result.to(first.dtype), live)


@triton.jit
def argmax(logits, tokens, peaks, width, stride, block: tl.constexpr):
    """Write the first index of a row's largest value, and that value; NaN is the largest."""
    row = tl.program_id(0).to(tl.int64)
    best = -float("inf")
    where = 0
    sick = 0
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        values = tl.load(logits + row * stride + at, at < width, -float("inf")).to(tl.float32)
        sick += tl.sum((values != values).to(tl.int32), 0)
        values = tl.where(values != values, -float("inf"), values)
        top = tl.max(values, 0)
        index = start + tl.argmax(values, 0, tie_break_left=True)
        where = tl.where(top > best, index, where)
        best = tl.maximum(best, top)
    tl.store(tokens + row, where.to(tl.int64))
    tl.store(peaks + row, tl.where(sick > 0, float("nan"), best))
