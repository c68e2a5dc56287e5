"""Latent attention: rows [rope | latent] of the cache are keys, and their latents values.

All heads read the same rows, so a tile's rows are heads, token after token, as in `attention`:
the same segments, merged in the same order.
"""

import triton
import triton.language as tl

from quire.ops.triton.kernels.attention import _merged
from quire.ops.triton.kernels.rotary import _gained, _store


@triton.jit
def write(
    q, kv, positions, cos_sin, gain, eps, cache, scales, unit, most, slots, q_out, q_stride,
    kv_stride, heads, width: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr,
    kind: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One head of one token's query; the token's row of the cache if its number is `heads`."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, block)
    half: tl.constexpr = rope // 2
    turned = at < rope
    other = tl.where(at < half, at + half, at - half)
    angle = cos_sin + tl.load(positions + row) * rope + at % half
    cos = tl.load(angle, turned, 1.0)
    sin = tl.load(angle + half, turned, 0.0)
    sin = tl.where(at < half, -sin, sin)
    is_query = head < heads
    source = kv + row * kv_stride
    live = at < rope + latent
    if is_query:
        source = q + row * q_stride + head * width
        live = at < width
    values = tl.load(source + at, live, 0.0)
    partner = tl.load(source + other, turned, 0.0)
    rotated = (values.to(tl.float32) * cos + partner.to(tl.float32) * sin).to(values.dtype)
    if is_query:
        kept = tl.where(turned, rotated, values)
        tl.store(q_out + (row * heads + head) * width + at, kept, live)
    else:
        normed = live & (at >= rope)
        wide = tl.where(normed, values.to(tl.float32), 0.0)
        factor = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / latent + eps)
        kept = tl.where(turned, rotated, _gained(values, factor, gain, at - rope, normed))
        slot = tl.load(slots + row)
        _store(kept, at, cache, scales, slot, unit, most, rope + latent, kind, 0, 0, block)


@triton.jit
def _segment(
    query, query_rope, cache, scales, table, low, high, end, row_position, scale,
    block_size: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr, rows: tl.constexpr,
    block_rope: tl.constexpr, block_latent: tl.constexpr, keys: tl.constexpr,
    scaled: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the running maximum, sum and weighted latents of rows over keys [low, high)."""
    at, rope_at = tl.arange(0, block_latent), tl.arange(0, block_rope)
    top = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    acc = tl.zeros((rows, block_latent), tl.float32)
    for start in range(low, high, keys):
        column = start + tl.arange(0, keys)
        there = column < end
        slot = tl.load(table + column // block_size, there, 0).to(tl.int64) * block_size
        slot = slot + column % block_size
        first = cache + slot[:, None] * (rope + latent)
        key_rope = tl.load(
            first + rope_at[None, :], there[:, None] & (rope_at < rope)[None, :], 0.0
        ).to(compute)
        value = tl.load(
            first + rope + at[None, :], there[:, None] & (at < latent)[None, :], 0.0
        ).to(compute)
        scores = tl.dot(query, tl.trans(value), input_precision="ieee")
        scores = tl.dot(query_rope, tl.trans(key_rope), scores, input_precision="ieee") * scale
        factor = tl.full((keys,), 1.0, tl.float32)
        if scaled:
            factor = tl.load(scales + slot, there, 0.0).to(tl.float32)
            scores = scores * factor[None, :]
        seen = there[None, :] & (column[None, :] <= row_position[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        pivot = tl.where(new_top == -float("inf"), 0.0, new_top)
        weight = tl.exp(scores - pivot[:, None])
        keep = tl.exp(top - pivot)
        total = total * keep + tl.sum(weight, 1)
        if scaled:
            weight = weight * factor[None, :]
        product = tl.dot(weight.to(compute), value, input_precision="ieee")
        acc = acc * keep[:, None] + product
        top = new_top
    return top, total, acc


@triton.jit
def attention(
    q, q_rope, cache, scales, unit, tables, tiles, out, part_acc, part_top, part_total, scale,
    segments, heads, q_stride, q_head_stride, rope_stride, rope_head_stride, table_stride,
    block_size: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr, rows: tl.constexpr,
    block_heads: tl.constexpr, block_rope: tl.constexpr, block_latent: tl.constexpr,
    keys: tl.constexpr, segment: tl.constexpr, scaled: tl.constexpr, split: tl.constexpr,
    compute: tl.constexpr,
):  # fmt: skip
    """A tile of rows of some heads; one segment of the keys if `split`, else all.

    tiles, part_*: as `attention.attention` has them.
    """
    entry = tiles + tl.program_id(0) * 5
    num_rows, position, length = tl.load(entry + 1), tl.load(entry + 3), tl.load(entry + 4)
    table = tables + tl.load(entry + 2).to(tl.int64) * table_stride
    lane = tl.arange(0, rows)
    token, head = lane // block_heads, tl.program_id(1) * block_heads + lane % block_heads
    live = (token < num_rows) & (head < heads)
    row = tl.load(entry).to(tl.int64) + token
    at, rope_at = tl.arange(0, block_latent), tl.arange(0, block_rope)
    mask = live[:, None] & (at < latent)[None, :]
    start = row * q_stride + head * q_head_stride
    query = tl.load(q + start[:, None] + at[None, :], mask, 0.0).to(compute)
    start = row * rope_stride + head * rope_head_stride
    query_rope = tl.load(
        q_rope + start[:, None] + rope_at[None, :],
        live[:, None] & (rope_at < rope)[None, :], 0.0,
    ).to(compute)  # fmt: skip
    end = tl.minimum(position + num_rows, length)
    top = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    acc = tl.zeros((rows, block_latent), tl.float32)
    first, last = 0, tl.cdiv(end, segment)
    if split:
        first = tl.program_id(2)
        last = first + 1
    for number in range(first, last):
        part = _segment(
            query, query_rope, cache, scales, table, number * segment,
            tl.minimum((number + 1) * segment, end), end, position + token, scale * unit,
            block_size, rope, latent, rows, block_rope, block_latent, keys, scaled, compute,
        )  # fmt: skip
        top, total, acc = _merged(top, total, acc, part[0], part[1], part[2])
    target = row * heads + head
    if split:
        target = target * segments + first
        tl.store(part_top + target, top, live)
        tl.store(part_total + target, total, live)
        tl.store(part_acc + target[:, None] * latent + at[None, :], acc, mask)
    else:
        result = acc / tl.where(live & (total > 0.0), total, 1.0)[:, None] * unit
        tl.store(
            out + target[:, None] * latent + at[None, :], result.to(out.dtype.element_ty), mask
        )
