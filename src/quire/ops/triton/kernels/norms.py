"""Norms of rows, and rows as 8-bit integers or floats: one program per row."""

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
def _step(values):
    """Return 1.5 · 2^23 times the distance of two neighbours of e4m3, where each value lies."""
    exponent = (values.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.maximum(exponent, 127 - 6)  # below it, numbers are equally far apart
    return (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)


@triton.jit
def _write_codes(values, codes, scales, row, at, live, width):
    """Write a row as 8-bit numbers with a scale: values / scale, rounded, ties to even."""
    kind: tl.constexpr = codes.dtype.element_ty
    most: tl.constexpr = 127.0 if kind == tl.int8 else 448.0
    wide = values.to(tl.float32)
    sick = tl.sum((wide != wide).to(tl.int32), 0) > 0
    scale = tl.max(tl.where(wide != wide, 0.0, tl.abs(wide)), 0) / most
    scale = tl.where(sick, float("nan"), scale)
    over = wide / tl.where(scale == 0.0, 1.0, scale)
    magic = 12582912.0
    if kind != tl.int8:
        magic = _step(over)
    rounded = (over + magic) - magic
    rounded = tl.where((rounded >= -most) & (rounded <= most), rounded, 0.0)
    tl.store(codes + row * width + at, rounded.to(kind), live)
    tl.store(scales + row, scale)


@triton.jit
def quantize_rows(
    x, out, scales, width, stride, overlap: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Write each row as 8-bit numbers of the type of `out`, and its scale."""
    begin(overlap)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    live = at < width
    _write_codes(tl.load(x + row * stride + at, live, 0.0), out, scales, row, at, live, width)


@triton.jit
def rms_norm(
    x, residual, weight, out, total, codes, scales, width, x_stride, residual_stride, out_stride,
    eps,
    add: tl.constexpr, coded: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the RMS norm of x, or of x + residual, and that sum.

    coded: also write the norm as `quantize_rows` does, to `codes` and `scales`.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    live = at < width
    gain = tl.load(weight + at, live, 0.0)
    begin(overlap)
    values = _read(x, residual, total, row, at, live, width, x_stride, residual_stride, add)
    wide = values.to(tl.float32)
    scaled = wide * (1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / width + eps))
    product = gain.to(tl.float32) * scaled.to(gain.dtype).to(tl.float32)
    result = product.to(gain.dtype).to(values.dtype)
    tl.store(out + row * out_stride + at, result, live)
    if coded:
        _write_codes(result, codes, scales, row, at, live, width)


@triton.jit
def layer_norm(
    x, residual, weight, bias, out, total, codes, scales, width, x_stride, residual_stride,
    out_stride, eps,
    add: tl.constexpr, coded: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the layer norm of x, or of x + residual, and that sum; see `rms_norm`."""
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
    result = (scaled * gain + shift).to(values.dtype)
    tl.store(out + row * out_stride + at, result, live)
    if coded:
        _write_codes(result, codes, scales, row, at, live, width)
