"""Attention over the paged cache: one kernel for prompts and single tokens.

Rows of a tile are the query heads of one key head, token after token:

```
             keys  0 … 511            │ 512 … 1023           │ …    segments
rows of  ──→ m, l, acc of the segment │ m, l, acc            │      merged in their order
one tile          64 keys at a time
```

Segments begin at multiples of `segment` in the sequence. One program merges them as it goes, or
each has a program of its own and `merge` adds them: the same sums in the same order, so the same
bits. A tile of keys in which a row sees nothing changes nothing of it.
"""

import triton
import triton.language as tl


@triton.jit
def _merged(top, total, acc, top_2, total_2, acc_2):
    """Return two parts of a softmax as one; a part that has seen nothing changes nothing."""
    new_top = tl.maximum(top, top_2)
    pivot = tl.where(new_top == -float("inf"), 0.0, new_top)
    keep = tl.exp(top - pivot)
    keep_2 = tl.exp(top_2 - pivot)
    new_acc = acc * keep[:, None] + acc_2 * keep_2[:, None]
    return new_top, total * keep + total_2 * keep_2, new_acc


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
def _scores(
    query, key, row_position, row_begin, column, there, scale, softcap, window,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
):  # fmt: skip
    """Return the products of rows and keys; -infinity where a row does not see a key."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale[None, :]
    if capped:
        power = tl.exp(-2.0 * tl.abs(scores / softcap))
        size = (1.0 - power) / (1.0 + power) * softcap
        scores = tl.where(scores < 0.0, -size, size)
    seen = there[None, :] & (column[None, :] >= row_begin[:, None])
    if causal:
        seen = seen & (column[None, :] <= row_position[:, None])
    elif windowed:
        seen = seen & (column[None, :] < row_position[:, None] + window)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _read(
    cached, slot, there, width: tl.constexpr, block_width: tl.constexpr, keys: tl.constexpr,
    halves: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the heads in some slots; of 4-bit codes their levels.

    halves: 0, or the positive levels, seven bits in each byte: those of codes 8 to 15. The level of
        code c is minus that of 15 - c.
    """
    if halves == 0:
        at = tl.arange(0, block_width)
        mask = there[:, None] & (at < width)[None, :]
        values = tl.load(cached + slot[:, None] * width + at[None, :], mask, 0.0)
    else:
        at = tl.arange(0, block_width // 2)
        mask = there[:, None] & (at < width // 2)[None, :]
        pair = tl.load(cached + slot[:, None] * (width // 2) + at[None, :], mask, 0)
        codes = tl.join(pair & 15, pair >> 4).reshape(keys, block_width).to(tl.int32)
        place = tl.where(codes >= 8, codes - 8, 7 - codes).to(tl.int64)
        size = ((tl.full((1, 1), halves, tl.int64) >> place * 8) & 127).to(tl.float32)
        values = tl.where(codes >= 8, size, -size)
    return values.to(compute)


@triton.jit
def _segment(
    query, k_cache, v_cache, k_scale, v_scale, table, kv_head, kv_heads, low, high, begin, end,
    row_position, row_begin, scale, softcap, window,
    block_size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, block_width: tl.constexpr,
    keys: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    scaled: tl.constexpr, halves: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the running maximum, sum and weighted values of rows over keys [low, high)."""
    top = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    acc = tl.zeros((rows, block_width), tl.float32)
    for start in range(low, high, keys):
        column = start + tl.arange(0, keys)
        there = (column >= begin) & (column < end)
        block = tl.load(table + column // block_size, there, 0)
        slot = (block.to(tl.int64) * kv_heads + kv_head) * block_size + column % block_size
        key = _read(k_cache, slot, there, width, block_width, keys, halves, compute)
        factor = tl.full((keys,), scale, tl.float32)
        if scaled:
            factor = factor * tl.load(k_scale + slot, there, 0.0).to(tl.float32)
        scores = _scores(
            query, key, row_position, row_begin, column, there, factor, softcap, window,
            causal, windowed, capped,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(scores, 1))
        pivot = tl.where(new_top == -float("inf"), 0.0, new_top)
        weight = tl.exp(scores - pivot[:, None])
        keep = tl.exp(top - pivot)
        total = total * keep + tl.sum(weight, 1)
        if scaled:
            weight = weight * tl.load(v_scale + slot, there, 0.0).to(tl.float32)[None, :]
        value = _read(v_cache, slot, there, width, block_width, keys, halves, compute)
        product = tl.dot(weight.to(compute), value, input_precision="ieee")
        acc = acc * keep[:, None] + product
        top = new_top
    return top, total, acc


@triton.jit
def attention(
    q, k_cache, v_cache, k_scale, v_scale, v_unit, sinks, tables, tiles, out,
    part_acc, part_top, part_total, scale, softcap, window, segments, heads, kv_heads, q_stride,
    table_stride,
    block_size: tl.constexpr, width: tl.constexpr, group: tl.constexpr, rows: tl.constexpr,
    block_group: tl.constexpr, block_width: tl.constexpr, keys: tl.constexpr,
    segment: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, chunked: tl.constexpr,
    capped: tl.constexpr, scaled: tl.constexpr, sunk: tl.constexpr, split: tl.constexpr,
    halves: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one key head; one segment of the keys if `split`, else all.

    tiles: int32 [tiles, 5]; first row, rows, sequence, position of the first row, length of the
        sequence.
    part_*: float32 [T, heads, segments (, width)].
    """
    kv_head = tl.program_id(1)
    entry = tiles + tl.program_id(0) * 5
    num_rows, position, length = tl.load(entry + 1), tl.load(entry + 3), tl.load(entry + 4)
    table = tables + tl.load(entry + 2).to(tl.int64) * table_stride
    lane = tl.arange(0, rows)
    token, member = lane // block_group, lane % block_group
    live = (token < num_rows) & (member < group)
    head = kv_head * group + member
    row = tl.load(entry).to(tl.int64) + token
    at = tl.arange(0, block_width)
    mask = live[:, None] & (at < width)[None, :]
    offset = row[:, None] * q_stride + head[:, None] * width + at[None, :]
    query = tl.load(q + offset, mask, 0.0).to(compute)
    begin, end, row_begin = _bounds(
        position, position + token, num_rows, length, window, causal, windowed, chunked
    )
    top = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    acc = tl.zeros((rows, block_width), tl.float32)
    first, last = begin // segment, tl.cdiv(end, segment)
    if split:
        first = tl.program_id(2)
        last = first + 1
    for number in range(first, last):
        low = tl.maximum(number * segment, begin // keys * keys)
        high = tl.minimum((number + 1) * segment, end)
        part = _segment(
            query, k_cache, v_cache, k_scale, v_scale, table, kv_head, kv_heads, low, high, begin,
            end, position + token, row_begin, scale, softcap, window, block_size, width, rows,
            block_width, keys, causal, windowed, capped, scaled, halves, compute,
        )  # fmt: skip
        top, total, acc = _merged(top, total, acc, part[0], part[1], part[2])
    target = row * heads + head
    if split:
        target = target * segments + first
        tl.store(part_top + target, top, live)
        tl.store(part_total + target, total, live)
        tl.store(part_acc + target[:, None] * width + at[None, :], acc, mask)
    else:
        sums = tl.where(total > 0.0, total, 1.0)  # a void row has seen nothing
        if sunk:
            sums = total + tl.exp(tl.load(sinks + head, live, 0.0).to(tl.float32) - top)
        result = acc / sums[:, None] * v_unit
        tl.store(out + target[:, None] * width + at[None, :], result.to(out.dtype.element_ty), mask)


@triton.jit
def merge(
    part_acc,
    part_top,
    part_total,
    sinks,
    out,
    v_unit,
    segments,
    heads,
    width: tl.constexpr,
    block_width: tl.constexpr,
    sunk: tl.constexpr,
):
    """Add the segments of one row and head, in their order."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, block_width)
    used = at < width
    top = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, block_width), tl.float32)
    one = tl.arange(0, 1)
    for number in range(segments):
        source = (row * heads + head) * segments + number
        part = tl.load(part_acc + source * width + at, used, 0.0)[None, :]
        top_2 = tl.load(part_top + source + one)
        total_2 = tl.load(part_total + source + one)
        top, total, acc = _merged(top, total, acc, top_2, total_2, part)
    if sunk:
        total = total + tl.exp(tl.load(sinks + head + one).to(tl.float32) - top)
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None] * v_unit
    offset = (row * heads + head) * width + at[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), used[None, :])
