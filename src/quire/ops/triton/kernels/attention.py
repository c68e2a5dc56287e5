"""Attention over the paged cache: one kernel for prompts and single tokens.

Rows of a tile are the query heads of one key head, token after token:

```
             keys  0 … 511            │ 512 … 1023           │ …    segments
rows of  ──→ maximum, sum, acc        │ maximum, sum, acc    │      merged in their order
one tile          64 keys at a time
```

Segments begin at multiples of `segment` in the sequence. One program merges them as it goes; or
programs share them, store their parts, and the last to end merges all: the same sums in the same
order, so the same bits. A tile of keys in which a row sees nothing changes nothing of it.
"""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import begin as wait
from quire.ops.triton.kernels.overlap import prefetch
from quire.ops.triton.kernels.rotary import LARGE_KEYS, SCALE_ZERO, SMALL_KEYS, VALUE_SIZES
from quire.ops.triton.kernels.softmax import folded, merged, store, weigh

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _bounds(
    position, row_position, num_rows, length, window,
    causal: tl.constexpr, windowed: tl.constexpr, chunked: tl.constexpr,
):  # fmt: skip
    """Return the first key that a tile sees, the one behind its last, and each row's first."""
    begin = position * 0
    row_begin = row_position * 0
    if windowed:
        if chunked:
            begin = position - position % window
            row_begin = row_position - row_position % window
        else:
            begin = tl.maximum(position - window + 1, 0)
            row_begin = row_position - window + 1
    end = length
    if causal:
        end = tl.minimum(position + num_rows, length)
    elif windowed:
        end = tl.minimum(position + num_rows + window - 1, length)
    return begin, end, row_begin


@triton.jit
def _blocks(table, start, begin, end, keys: tl.constexpr, block_size: tl.constexpr):
    """Return the blocks of the keys from `start`, a multiple of `keys`."""
    lane = tl.arange(0, keys)
    column = start + lane
    if keys % block_size == 0:
        block = start // block_size + lane // block_size
    else:
        block = column // block_size
    return tl.load(table + block, (column >= begin) & (column < end), 0)


@triton.jit
def _slots(
    blocks, start, kv_head, kv_heads, keys: tl.constexpr, block_size: tl.constexpr
):  # fmt: skip
    """Return where the cache holds a head of the keys from `start`, which lie in `blocks`."""
    within = tl.arange(0, keys)
    if keys % block_size != 0:
        within += start
    within = kv_head * block_size + within % block_size
    return blocks.to(tl.int64) * (kv_heads * block_size) + within


@triton.jit
def _capped(scores, softcap):
    """Return softcap · tanh(scores / softcap)."""
    power = tl.exp(-2.0 * tl.abs(scores / softcap))
    size = (1.0 - power) / (1.0 + power) * softcap
    return tl.where(scores < 0.0, -size, size)


@triton.jit
def _seen(
    scores, row_position, row_begin, column, there, window,
    causal: tl.constexpr, windowed: tl.constexpr,
):  # fmt: skip
    """Return the scores; -infinity where a row does not see a key."""
    seen = there[None, :]
    if windowed:
        seen = seen & (column[None, :] >= row_begin[:, None])
    if causal:
        seen = seen & (column[None, :] <= row_position[:, None])
    elif windowed:
        seen = seen & (column[None, :] < row_position[:, None] + window)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _read(
    cached, signs, slot, there, width: tl.constexpr, block_width: tl.constexpr, keys: tl.constexpr,
    packed: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the heads in some slots; of an int4 cache their levels, of keys if it has signs."""
    if not packed:
        at = tl.arange(0, block_width)
        mask = there[:, None]
        if width < block_width:
            mask = mask & (at < width)[None, :]
        values = tl.load(cached + slot[:, None] * width + at[None, :], mask, 0.0)
    else:
        at = tl.arange(0, block_width // 2)
        mask = there[:, None] & (at < width // 2)[None, :]
        pair = tl.load(cached + slot[:, None] * (width // 2) + at[None, :], mask, 0)
        code = tl.join(pair & 15, pair >> 4).reshape(keys, block_width).to(tl.int32)
        sizes = tl.full((1, 1), VALUE_SIZES, tl.int64)
        negative = code & 8
        if signs is not None:
            byte = tl.arange(0, block_width // 8)
            mask = there[:, None] & (byte < width // 8)[None, :]
            sign = tl.load(signs + slot[:, None] * (width // 8) + byte[None, :], mask, 0)
            bits = (sign[:, :, None] >> tl.arange(0, 8)[None, None, :].to(tl.uint8)) & 1
            sizes = tl.where(code < 8, tl.full((1, 1), SMALL_KEYS, tl.int64), LARGE_KEYS)
            negative = bits.reshape(keys, block_width).to(tl.int32)
        size = ((sizes >> (code & 7).to(tl.int64) * 8) & 127).to(tl.float32)
        values = tl.where(negative != 0, -size, size)
    return values.to(compute)


@triton.jit
def load_scales(scales, slot, there, packed: tl.constexpr):
    """Return the scales of heads in some slots, for `spread`; zeros if there are none.

    packed: a scale has one byte; see `int4.scale_of`.
    """
    scale = tl.zeros(slot.shape, tl.float32)
    if scales is not None:
        stored = tl.load(scales + slot, there, 0)
        scale = stored.to(tl.float32)
        if packed:
            code = stored.to(tl.int32)
            value = ((code + SCALE_ZERO) << 20).to(tl.float32, bitcast=True)
            scale = tl.where(code == 0, 0.0, tl.where(code == 255, float("nan"), value))
    return scale


@triton.jit
def spread(scales):
    """Return the scales of keys in the order of a tile's columns.

    Each thread of a tile needs a quarter of them. This way they pass through shared memory; else
    each thread would load its own, from addresses that would fill its registers.
    """
    return tl.gather(scales, tl.arange(0, scales.shape[0]), 0)[None, :]


@triton.jit
def _ahead(
    cache, place, start, keys: tl.constexpr, block_size: tl.constexpr, packed: tl.constexpr
):  # fmt: skip
    """Return what a tile of keys needs first: its blocks, and the scales of keys and values."""
    table, kv_head, kv_heads, begin, end = place
    column = start + tl.arange(0, keys)
    there = (column >= begin) & (column < end)
    blocks = _blocks(table, start, begin, end, keys, block_size)
    slot = _slots(blocks, start, kv_head, kv_heads, keys, block_size)
    k_scales = load_scales(cache[2], slot, there, packed)
    return blocks, k_scales, load_scales(cache[3], slot, there, packed)


@triton.jit
def _nothing(rows: tl.constexpr, width: tl.constexpr):
    """Return the part of rows that have seen no key."""
    top = tl.full((rows,), -float("inf"), tl.float32)
    return top, tl.zeros((rows,), tl.float32), tl.zeros((rows, width), tl.float32)


@triton.jit
def _queries(q, first, live, width: tl.constexpr, block_width: tl.constexpr):
    """Return heads of queries, which begin at `first`."""
    at = tl.arange(0, block_width)
    return tl.load(q + first[:, None] + at[None, :], live[:, None] & (at < width)[None, :], 0.0)


@triton.jit
def _tile(
    ahead, whole, part, start, query, cache, place, row_position, row_begin, numbers,
    masked: tl.constexpr, block_size: tl.constexpr, width: tl.constexpr, keys: tl.constexpr,
    segment: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    split: tl.constexpr, packed: tl.constexpr, lift: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the running part; where a segment begins, merge the part into `whole`.

    ahead: `_ahead` of the tile. Returned is the next tile's, so that nothing waits for it.
    """
    k_cache, v_cache, k_scale, v_scale, k_signs = cache
    _, kv_head, kv_heads, begin, end = place
    scale, softcap, window = numbers
    blocks, k_scales, v_scales = ahead
    block_width: tl.constexpr = query.shape[1]
    column = start + tl.arange(0, keys)
    there = column >= 0
    if masked:
        there = (column >= begin) & (column < end)
    slot = _slots(blocks, start, kv_head, kv_heads, keys, block_size)
    ahead = _ahead(cache, place, start + keys, keys, block_size, packed)
    key = _read(k_cache, k_signs, slot, there, width, block_width, keys, packed, compute)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if k_scale is not None:
        scores = scores * spread(k_scales)
    rate = scale * LOG2E
    if capped:
        scores = _capped(scores * scale, softcap)
        rate = LOG2E
    if masked:
        scores = _seen(scores, row_position, row_begin, column, there, window, causal, windowed)
    if not split and start % segment == 0:
        whole = merged(whole[0], whole[1], whole[2], part[0], part[1], part[2])
        part = _nothing(query.shape[0], block_width)
    weight, top, total, keep = weigh(scores, rate, part[0], part[1])
    if v_scale is not None:
        weight = weight * (spread(v_scales) * lift)
    value = _read(v_cache, None, slot, there, width, block_width, keys, packed, compute)
    acc = tl.dot(weight.to(compute), value, part[2] * keep[:, None], input_precision="ieee")
    return ahead, whole, (top, total, acc)


@triton.jit
def _keys(
    low, high, query, cache, place, position, token, row_begin, numbers,
    smooth: tl.constexpr, block_size: tl.constexpr, width: tl.constexpr, keys: tl.constexpr,
    segment: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    split: tl.constexpr, packed: tl.constexpr, lift: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the part of keys [low, high): first of those that all rows see, if `smooth`."""
    part = _nothing(query.shape[0], query.shape[1])
    whole = part
    edge = low
    if smooth:
        seen = place[4]
        if causal:
            seen = tl.minimum(position + 1, seen)
        edge = tl.maximum(tl.minimum(seen, high) // keys * keys, low)
    for masked in tl.static_range(0 if smooth else 1, 2):
        first, last = low, edge
        if masked == 1:
            first, last = edge, high
        ahead = _ahead(cache, place, first, keys, block_size, packed)
        for start in range(first, last, keys):
            ahead, whole, part = _tile(
                ahead, whole, part, start, query, cache, place, position + token, row_begin,
                numbers, masked == 1, block_size, width, keys, segment, causal, windowed, capped,
                split, packed, lift, compute,
            )  # fmt: skip
    if not split:
        part = merged(whole[0], whole[1], whole[2], part[0], part[1], part[2])
    return part


@triton.jit
def _write(
    out, sinks, v_unit, target, head, live, top, total, acc, width: tl.constexpr
):  # fmt: skip
    """Write the results of rows; `target` is each row's number among the rows of `out`."""
    sums = tl.where(total > 0.0, total, 1.0)  # a void row has seen nothing
    if sinks is not None:
        sums = total + tl.exp2(tl.load(sinks + head, live, 0.0).to(tl.float32) * LOG2E - top)
    at = tl.arange(0, acc.shape[1])
    # Zero plus minus zero is zero: merging a part more or less must not show.
    result = acc * (v_unit / sums)[:, None] + 0.0
    offset = target[:, None] * width + at[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), live[:, None] & (at < width)[None, :])


@triton.jit
def _is_last(arrival, programs):
    """Return whether all other programs have stored their parts; count from zero again then."""
    tl.debug_barrier()  # all threads have stored
    last = tl.atomic_add(arrival, 1, sem="acq_rel") == programs - 1
    tl.store(arrival, 0, last)
    return last


@triton.jit
def _merge(
    out, sinks, v_unit, part_acc, part_top, part_total, row, num_rows, kv_head, heads, segments,
    count, width: tl.constexpr, group: tl.constexpr, block_group: tl.constexpr,
    block_width: tl.constexpr,
):  # fmt: skip
    """Write the results of a tile whose parts are all stored."""
    member = tl.arange(0, block_group)
    head = kv_head * group + member
    live = member < group
    for number in range(num_rows):
        target = (row + number).to(tl.int64) * heads + head
        top, total, acc = folded(
            part_acc, part_top, part_total, target * segments, live, count,
            width, block_group, block_width,
        )  # fmt: skip
        _write(out, sinks, v_unit, target, head, live, top, total, acc, width)


@triton.jit
def _entry(entry, tables, table_stride):
    """Return a tile's first row, rows, first position, its sequence's length and block table."""
    table = tables + tl.load(entry + 2).to(tl.int64) * table_stride
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 3), tl.load(entry + 4), table


@triton.jit
def _prefetch(
    k_cache, v_cache, table, kv_head, kv_heads, low, begin, end, count: tl.constexpr,
    block_size: tl.constexpr, stored: tl.constexpr, lines: tl.constexpr,
):  # fmt: skip
    """Have the second-level cache read `count` keys and values from `low`, rows of `stored`."""
    column = low + tl.arange(0, count)
    there = (column >= begin) & (column < end)
    block = tl.load(table + column // block_size, there, 0).to(tl.int64)
    slot = (block * kv_heads + kv_head) * block_size + column % block_size
    elements: tl.constexpr = 1024 // k_cache.dtype.element_ty.primitive_bitwidth
    at = tl.minimum(tl.arange(0, lines) * elements, stored - 1)
    place = slot[:, None] * stored + at[None, :]
    prefetch(k_cache + place)
    prefetch(v_cache + place)


@triton.jit(do_not_specialize=["segments"])
def attention(
    q, k_cache, v_cache, k_scale, v_scale, k_signs, v_unit, sinks, tables, tiles, out, arrivals,
    part_acc, part_top, part_total, scale, softcap, window, segments, heads, kv_heads, q_stride,
    table_stride, block_size: tl.constexpr, width: tl.constexpr, group: tl.constexpr,
    rows: tl.constexpr, block_group: tl.constexpr, block_width: tl.constexpr, keys: tl.constexpr,
    segment: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, chunked: tl.constexpr,
    capped: tl.constexpr, split: tl.constexpr, smooth: tl.constexpr, packed: tl.constexpr,
    lift: tl.constexpr, ahead: tl.constexpr, overlap: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one key head; with `split`, the program's share of their segments.

    tiles: int32 [tiles, 5]; first row, rows, sequence, first row's position, sequence's length.
    arrivals: int32 [tiles · kv_heads] of zeros: programs that stored their parts.
    part_*: float32 [T, heads, segments (, width)].
    smooth: keys that all rows see have a loop of their own, without masks.
    lift: factor of scales of values, by which v_unit is divided. ahead: lines to prefetch of a key.
    """
    tile, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)  # longest first
    first_row, num_rows, position, length, table = _entry(tiles + tile * 5, tables, table_stride)
    token, member = tl.arange(0, rows) // block_group, tl.arange(0, rows) % block_group
    begin, end, row_begin = _bounds(
        position, position + token, num_rows, length, window, causal, windowed, chunked
    )
    first, last = begin // segment, tl.cdiv(end, segment)
    share = tl.maximum(tl.cdiv(last - first, tl.num_programs(2)), 1)
    own, step = first + tl.program_id(2) * share, share
    if split:
        step = 1
        if (own >= last) & (own > first):
            return
    live, head = (token < num_rows) & (member < group), kv_head * group + member
    row = first_row.to(tl.int64) + token
    if overlap and ahead > 0:
        _prefetch(
            k_cache, v_cache, table, kv_head, kv_heads, own * segment, begin, end, segment,
            block_size, width // 2 if packed else width, ahead,
        )  # fmt: skip
    wait(overlap)
    query = _queries(q, row * q_stride + head * width, live, width, block_width).to(compute)
    target, cache = row * heads + head, (k_cache, v_cache, k_scale, v_scale, k_signs)
    place = table, kv_head, kv_heads, begin, end
    top, total, acc = _nothing(rows, block_width)
    for number in range(own, tl.minimum(own + share, last), step):
        low, high = tl.maximum(number * segment, begin // keys * keys), (number + step) * segment
        top, total, acc = _keys(
            low, tl.minimum(high, end), query, cache, place, position, token, row_begin,
            (scale, softcap, window), smooth, block_size, width, keys, segment, causal, windowed,
            capped, split, packed, lift, compute,
        )  # fmt: skip
        if split:
            part = target * segments + (number - first)
            store(part_acc, part_top, part_total, part, live, top, total, acc, width)
    if split and last - first > 1:
        if _is_last(arrivals + tile * kv_heads + kv_head, tl.cdiv(last - first, share)):
            _merge(
                out, sinks, v_unit, part_acc, part_top, part_total, first_row, num_rows,
                kv_head, heads, segments, last - first, width, group, block_group, block_width,
            )  # fmt: skip
    else:
        _write(out, sinks, v_unit, target, head, live, top, total, acc, width)
