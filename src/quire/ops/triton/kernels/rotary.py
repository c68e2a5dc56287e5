"""Split a product into queries, keys and values; normalize, rotate and store them."""

from collections.abc import Sequence

import triton
import triton.language as tl

from quire.ops.torch_ops import int4
from quire.ops.triton.kernels.overlap import begin


def _bytes(sizes: Sequence[int]) -> int:
    """Return eight sizes as one number, a byte each."""
    return sum(size << 8 * i for i, size in enumerate(sizes))


VALUE_SIZES = tl.constexpr(_bytes(int4.VALUE_SIZES))
SMALL_KEYS = tl.constexpr(_bytes(int4.KEY_SIZES[:8]))
LARGE_KEYS = tl.constexpr(_bytes(int4.KEY_SIZES[8:]))
MIDDLE_KEY = tl.constexpr(sum(int4.KEY_SIZES[7:9]) / 2)
SCALE_ZERO = tl.constexpr(int4.SCALE_ZERO)


@triton.jit
def _round(x):
    """Return x rounded to an integer, ties to even; |x| < 2²²."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _scale_of(values, live, most):
    """Return max|values| / most as a bfloat16 that is not below it; NaN if a value is NaN."""
    sick = tl.sum((live & (values != values)).to(tl.int32), 0) > 0
    exact = tl.max(tl.where(live, tl.abs(values), 0.0), 0) / most
    bits = exact.to(tl.int32, bitcast=True)
    above = ((bits + 0xFFFF) & -65536).to(tl.float32, bitcast=True)
    return tl.where(sick, float("nan"), above)


@triton.jit
def rotated(values, lane, bits: tl.constexpr):
    """Return values times the Hadamard matrix of 2^bits rows, which repeats along them."""
    for i in tl.static_range(bits):
        step = 1 << i
        partner = tl.gather(values, lane ^ step, 0)
        values = tl.where((lane & step) == 0, values + partner, partner - values)
    return values * (1 << bits) ** -0.5


@triton.jit
def hadamard(
    x, out, heads, row_stride, width: tl.constexpr, bits: tl.constexpr, overlap: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Rotate one head of one row."""
    begin(overlap)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, block)
    live = lane < width
    values = tl.load(x + row * row_stride + head * width + lane, live, 0.0).to(tl.float32)
    target = out + (row * heads + head) * width + lane
    tl.store(target, rotated(values, lane, bits).to(out.dtype.element_ty), live)


@triton.jit
def _above(size, sizes: tl.constexpr):
    """Return how many of the means of neighbours of eight `sizes` are below `size`."""
    number = (size < 0.0).to(tl.uint8)
    for i in tl.static_range(7):
        mean = ((sizes >> 8 * i & 255) + (sizes >> 8 * i + 8 & 255)) / 2
        number += (size > mean).to(tl.uint8)
    return number


@triton.jit
def _store_packed(
    wide, cached, scales, signs, slot, width: tl.constexpr, bits: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Store one head as `int4.pack` does; as a key if there are signs."""
    lane = tl.arange(0, block)
    turned = rotated(wide, lane, bits)
    live = lane < width
    sick = tl.sum((live & ~(tl.abs(turned) < float("inf"))).to(tl.int32), 0) > 0
    exact = tl.max(tl.where(live, tl.abs(turned), 0.0), 0) / 127.0
    code = ((exact.to(tl.int32, bitcast=True) + 0x80000) >> 20) - SCALE_ZERO
    code = tl.where(sick, 255, tl.minimum(tl.maximum(code, 0), 254))
    tl.store(scales + slot, code.to(tl.uint8), slot >= 0)
    scale = ((code + SCALE_ZERO) << 20).to(tl.float32, bitcast=True)
    scale = tl.where(code == 0, 1.0, tl.where(code == 255, float("nan"), scale))
    over = turned / scale
    size = tl.abs(over)
    negative = (over < 0.0).to(tl.uint8)
    held = tl.where(slot >= 0, width, 0)
    if signs is None:
        number = _above(size, VALUE_SIZES) + negative * 8
    else:
        number = _above(size, SMALL_KEYS) + _above(size, LARGE_KEYS)
        number += (size > MIDDLE_KEY).to(tl.uint8)
        byte = tl.arange(0, block // 8)
        places = tl.arange(0, 8).to(tl.uint8)[None, :]
        packed = tl.sum((negative.reshape(block // 8, 8) << places).to(tl.int32), 1)
        tl.store(signs + slot * (width // 8) + byte, packed.to(tl.uint8), byte < held // 8)
    low, high = tl.split(number.reshape(block // 2, 2))
    byte = tl.arange(0, block // 2)
    tl.store(cached + slot * (width // 2) + byte, low | high << 4, byte < held // 2)


@triton.jit
def _store(
    values, lane, cached, scales, signs, slot, unit, most, width: tl.constexpr, kind: tl.constexpr,
    bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store one head: as it is, over `unit`, or with a scale of its own; nothing in slot -1."""
    live = lane < tl.where(slot >= 0, width, 0)
    at = slot * width + lane
    if kind == "plain":
        tl.store(cached + at, values.to(cached.dtype.element_ty), live)
    elif kind == "unit":
        limited = tl.clamp(values.to(tl.float32) / unit, -most, most, tl.PropagateNan.ALL)
        tl.store(cached + at, limited.to(cached.dtype.element_ty), live)
    elif kind == "int4":
        _store_packed(values.to(tl.float32), cached, scales, signs, slot, width, bits, block)
    else:
        wide = values.to(tl.float32)
        scale = _scale_of(wide, lane < width, most)
        tl.store(scales + slot, scale.to(tl.bfloat16), slot >= 0)
        over = wide / tl.where(scale == 0.0, 1.0, scale)
        if kind == "int8":
            codes = _round(over)
            finite = (codes >= -127.0) & (codes <= 127.0)
            tl.store(cached + at, tl.where(finite, codes, 0.0).to(tl.int8), live)
        else:
            limited = tl.clamp(over, -most, most, tl.PropagateNan.ALL)
            tl.store(cached + at, limited.to(cached.dtype.element_ty), live)


@triton.jit
def _gained(values, factor, weight, at, live):
    """Return values · factor · weight, rounded as a norm is."""
    gain = tl.load(weight + at, live, 0.0)
    scaled = (values.to(tl.float32) * factor).to(gain.dtype)
    return (gain.to(tl.float32) * scaled.to(tl.float32)).to(gain.dtype).to(values.dtype)


@triton.jit
def _normed(values, partner, weight, at, partner_at, live, turned, width, eps):
    """Return a head and its partners, normalized and rounded as `norms.rms_norm` does."""
    wide = values.to(tl.float32)
    factor = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / width + eps)
    own = _gained(values, factor, weight, at, live)
    return own, _gained(partner, factor, weight, partner_at, turned)


@triton.jit
def rope_kv_write(
    qkv, positions, cos_sin, q_norm, k_norm, v_norm, eps, k_cache, v_cache, k_scale, v_scale,
    k_signs, k_unit, v_unit, most, slots, q_out, qkv_stride, heads, kv_heads, block_size,
    width: tl.constexpr, rotary: tl.constexpr, q_normed: tl.constexpr, k_normed: tl.constexpr,
    v_normed: tl.constexpr, kind: tl.constexpr, bits: tl.constexpr,
    overlap: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One head of one token: query, key or value by its number."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, block)
    live = at < width
    half: tl.constexpr = rotary // 2
    turned = at < rotary
    other = tl.where(at < half, at + half, at - half)
    slot = tl.load(slots + row)
    if rotary > 0:
        angle = cos_sin + tl.load(positions + row) * rotary + at % half
        cos = tl.load(angle, turned, 1.0)
        sin = tl.load(angle + half, turned, 0.0)
        sin = tl.where(at < half, -sin, sin)
    begin(overlap)
    source = qkv + row * qkv_stride + head * width
    values = tl.load(source + at, live, 0.0)
    is_value = head >= heads + kv_heads
    if not is_value:
        partner = tl.load(source + other, turned, 0.0)
        if head < heads:
            if q_normed:
                values, partner = _normed(
                    values, partner, q_norm, at, other, live, turned, width, eps
                )
        elif k_normed:
            values, partner = _normed(values, partner, k_norm, at, other, live, turned, width, eps)
        if rotary > 0:
            rotated = values.to(tl.float32) * cos + partner.to(tl.float32) * sin
            values = tl.where(turned, rotated, values.to(tl.float32)).to(values.dtype)
    elif v_normed:
        values, _ = _normed(values, values, v_norm, at, at, live, live, width, eps)
    if head < heads:
        tl.store(q_out + (row * heads + head) * width + at, values, live)
    else:
        kv_head = (head - heads) % kv_heads
        where = (slot // block_size * kv_heads + kv_head) * block_size + slot % block_size
        where = tl.where(slot >= 0, where, -1)
        if is_value:
            _store(
                values, at, v_cache, v_scale, None, where, v_unit, most, width, kind, bits, block
            )
        else:
            _store(
                values, at, k_cache, k_scale, k_signs, where, k_unit, most, width, kind, bits, block
            )
