"""Norms of rows: one program per row."""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import begin


@triton.jit
def _read(
    x, residual, total, row, at, live, width, x_stride, residual_stride, add: tl.constexpr
):  # fmt: skip
    """Return a row of x, or of x + residual, which is also written to `total`."""
    values = tl.load(x + row * x_stride + at, live, 0.0)
    if add:
        more = tl.load(residual + row * residual_stride + at, live, 0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(values.dtype)
        tl.store(total + row * width + at, values, live)
    return values


@triton.jit
def rms_norm(
    x, residual, weight, out, total, width, x_stride, residual_stride, eps,
    add: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the RMS norm of x, or of x + residual, and that sum."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    live = at < width
    gain = tl.load(weight + at, live, 0.0)
    begin(overlap)
    values = _read(x, residual, total, row, at, live, width, x_stride, residual_stride, add)
    wide = values.to(tl.float32)
    scaled = wide * (1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / width + eps))
    product = gain.to(tl.float32) * scaled.to(gain.dtype).to(tl.float32)
    tl.store(out + row * width + at, product.to(gain.dtype).to(values.dtype), live)


@triton.jit
def layer_norm(
    x, residual, weight, bias, out, total, width, x_stride, residual_stride, eps,
    add: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the layer norm of x, or of x + residual, and that sum."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    live = at < width
    gain = tl.load(weight + at, live, 0.0).to(tl.float32)
    shift = tl.load(bias + at, live, 0.0).to(tl.float32)
    begin(overlap)
    values = _read(x, residual, total, row, at, live, width, x_stride, residual_stride, add)
    wide = values.to(tl.float32)
    mean = tl.sum(wide, 0) / width
    away = tl.where(live, wide - mean, 0.0)
    scaled = away * (1.0 / tl.sqrt_rn(tl.sum(away * away, 0) / width + eps))
    tl.store(out + row * width + at, (scaled * gain + shift).to(values.dtype), live)
