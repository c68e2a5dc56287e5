"""Latent attention: rows [rope | latent] of the cache are keys, and their latents values.

All heads read the same rows, so a tile's rows are heads, token after token, as in `attention`:
the same segments, merged in the same order.
"""

import triton
import triton.language as tl

from quire.ops.triton.kernels.attention import LOG2E, _ahead, _nothing, _slots, spread
from quire.ops.triton.kernels.overlap import begin
from quire.ops.triton.kernels.rotary import _gained, _store
from quire.ops.triton.kernels.softmax import folded, merged, store, weigh


@triton.jit
def write(
    q, kv, positions, cos_sin, gain, eps, cache, scales, unit, most, slots, q_out, q_stride,
    kv_stride, heads, width: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr,
    kind: tl.constexpr, overlap: tl.constexpr, block: tl.constexpr,
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
    begin(overlap)
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
        _store(kept, at, cache, scales, None, slot, unit, most, rope + latent, kind, 0, block)


@triton.jit
def _segment(
    query, query_rope, cache, scales, table, low, high, end, row_position, scale,
    block_size: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr, rows: tl.constexpr,
    block_rope: tl.constexpr, block_latent: tl.constexpr, keys: tl.constexpr,
    lift: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the running maximum, sum and weighted latents of rows over keys [low, high)."""
    at, rope_at = tl.arange(0, block_latent), tl.arange(0, block_rope)
    top, total, acc = _nothing(rows, block_latent)
    lies = cache, None, scales, None, None  # as `_ahead` takes a cache, and a place in it
    place = table, 0, 1, 0, end
    blocks, factors, _ = _ahead(lies, place, low, keys, block_size, False)
    for start in range(low, high, keys):
        column = start + tl.arange(0, keys)
        there = column < end
        slot = _slots(blocks, start, 0, 1, keys, block_size)
        ahead = _ahead(lies, place, start + keys, keys, block_size, False)
        first = cache + slot[:, None] * (rope + latent)
        key_rope = tl.load(
            first + rope_at[None, :], there[:, None] & (rope_at < rope)[None, :], 0.0
        ).to(compute)
        value = tl.load(
            first + rope + at[None, :], there[:, None] & (at < latent)[None, :], 0.0
        ).to(compute)
        scores = tl.dot(query, tl.trans(value), input_precision="ieee")
        scores = tl.dot(query_rope, tl.trans(key_rope), scores, input_precision="ieee")
        if scales is not None:
            scores = scores * spread(factors)
        seen = there[None, :] & (column[None, :] <= row_position[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        weight, top, total, keep = weigh(scores, scale * LOG2E, top, total)
        if scales is not None:
            weight = weight * (spread(factors) * lift)
        acc = tl.dot(weight.to(compute), value, acc * keep[:, None], input_precision="ieee")
        blocks, factors, _ = ahead
    return top, total, acc


@triton.jit(do_not_specialize=["segments"])
def attention(
    q, q_rope, cache, scales, unit, tables, tiles, out, part_acc, part_top, part_total, scale,
    segments, heads, q_stride, q_head_stride, rope_stride, rope_head_stride, table_stride,
    block_size: tl.constexpr, rope: tl.constexpr, latent: tl.constexpr, rows: tl.constexpr,
    block_heads: tl.constexpr, block_rope: tl.constexpr, block_latent: tl.constexpr,
    keys: tl.constexpr, segment: tl.constexpr, split: tl.constexpr, lift: tl.constexpr,
    overlap: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """A tile of rows of some heads; with `split`, parts of the program's share of the segments.

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
    begin(overlap)
    query = tl.load(q + start[:, None] + at[None, :], mask, 0.0).to(compute)
    start = row * rope_stride + head * rope_head_stride
    query_rope = tl.load(
        q_rope + start[:, None] + rope_at[None, :],
        live[:, None] & (rope_at < rope)[None, :], 0.0,
    ).to(compute)  # fmt: skip
    end = tl.minimum(position + num_rows, length)
    top, total, acc = _nothing(rows, block_latent)
    first, last = 0, tl.cdiv(end, segment)
    if split:
        share = tl.cdiv(last, tl.num_programs(2))
        first = tl.program_id(2) * share
        last = tl.minimum(first + share, last)
    target = row * heads + head
    for number in range(first, last):
        part = _segment(
            query, query_rope, cache, scales, table, number * segment,
            tl.minimum((number + 1) * segment, end), end, position + token, scale * unit,
            block_size, rope, latent, rows, block_rope, block_latent, keys, lift, compute,
        )  # fmt: skip
        if split:
            at_part = target * segments + number
            store(part_acc, part_top, part_total, at_part, live, part[0], part[1], part[2], latent)
        else:
            top, total, acc = merged(top, total, acc, part[0], part[1], part[2])
    if not split:
        _write(out, unit / lift, target, live, total, acc, latent)


@triton.jit
def _write(out, unit, target, live, total, acc, latent: tl.constexpr):
    """Write the results of rows; a void row has seen nothing."""
    at = tl.arange(0, acc.shape[1])
    # Zero plus minus zero is zero: merging a part more or less must not show.
    result = acc * (unit / tl.where(total > 0.0, total, 1.0))[:, None] + 0.0
    offset = target[:, None] * latent + at[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), live[:, None] & (at < latent)[None, :])


@triton.jit(do_not_specialize=["segments"])
def merge(
    tiles, out, unit, part_acc, part_top, part_total, segments, heads,
    latent: tl.constexpr, block_latent: tl.constexpr, segment: tl.constexpr,
    overlap: tl.constexpr,
):  # fmt: skip
    """Write the results of a tile for one head, of which all parts are stored."""
    begin(overlap)
    entry = tiles + tl.program_id(0) * 5
    num_rows, position, length = tl.load(entry + 1), tl.load(entry + 3), tl.load(entry + 4)
    count = tl.cdiv(tl.minimum(position + num_rows, length), segment)
    live = tl.arange(0, 1) == 0
    for number in range(num_rows):
        row = tl.load(entry).to(tl.int64) + number
        target = row * heads + tl.program_id(1) + tl.arange(0, 1)
        _, total, acc = folded(
            part_acc, part_top, part_total, target * segments, live, count, latent, 1, block_latent
        )
        _write(out, unit, target, live, total, acc, latent)
