"""What low-rank adapters add to a layer: two products per tile of rows.

A tile has rows of several adapters. Its program takes the adapters one after the other, with zeros
for the rows of others, so a row's bits do not depend on its neighbours.

```
 low[s]  = A · x over columns of segment s       program per tile, merged layer and segment
 y      += scale · B · (low[0] + low[1] + …)     program per tile, columns and merged layer
```
"""

import triton
import triton.language as tl

_NONE = tl.constexpr(2147483647)


@triton.jit
def _next(number, last):
    """Return the least adapter of a tile's rows beyond `last`."""
    return tl.min(tl.where(number > last, number, _NONE), 0)


@triton.jit
def shrink(
    adapter, x, entries, low, rows, width, x_stride, parts,
    kind: tl.constexpr, segment: tl.constexpr, block_m: tl.constexpr, block_k: tl.constexpr,
    block_r: tl.constexpr,
):  # fmt: skip
    """One segment of the columns of A · x, for a tile of rows and one merged layer.

    entries: int64 [adapters, parts, 3]; addresses of A [rank, width] and B [rank, columns] of type
        `kind`, and the rank.
    low: float32 [segments, rows, parts, block_r].
    """
    row = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)
    part, number = tl.program_id(1), tl.program_id(2)
    live = row < rows
    own = tl.load(adapter + row, live, -1).to(tl.int32)
    rank_at = tl.arange(0, block_r)
    result = tl.zeros((block_m, block_r), tl.float32)
    current = _next(own, -1)
    while current != _NONE:
        entry = entries + (current.to(tl.int64) * parts + part) * 3
        a = tl.load(entry).to(tl.pointer_type(kind))
        used = rank_at < tl.load(entry + 2).to(tl.int32)
        acc = tl.zeros((block_m, block_r), tl.float32)
        for k in range(number * segment, tl.minimum((number + 1) * segment, width), block_k):
            at = k + tl.arange(0, block_k)
            there = at < width
            inputs = tl.load(
                x + row[:, None] * x_stride + at[None, :],
                (own == current)[:, None] & there[None, :], 0.0,
            )  # fmt: skip
            factors = tl.load(
                a + rank_at[:, None] * width + at[None, :], used[:, None] & there[None, :], 0.0
            )
            acc = tl.dot(inputs.to(kind), tl.trans(factors), acc, input_precision="ieee")
        result = tl.where((own == current)[:, None], acc, result)
        current = _next(own, current)
    target = ((number * 1 + row * 0) * rows + row) * parts + part
    tl.store(low + target[:, None] * block_r + rank_at[None, :], result, live[:, None])


@triton.jit
def expand(
    adapter, low, entries, scales, y, rows, y_stride, segments, parts, first_1, first_2, first_3,
    columns,
    kind: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_r: tl.constexpr,
):  # fmt: skip
    """Add scale · B · low to some columns of one merged layer, for a tile of rows."""
    row = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)
    part = tl.program_id(2)
    begin = tl.where(part == 2, first_2, first_3)
    begin = tl.where(part == 0, 0, tl.where(part == 1, first_1, begin))
    end = tl.where(part == 2, first_3, columns)
    end = tl.where(part == 0, first_1, tl.where(part == 1, first_2, end))
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    there = n < end - begin
    own = tl.load(adapter + row, row < rows, -1).to(tl.int32)
    has = own >= 0
    rank_at = tl.arange(0, block_r)
    total = tl.zeros((block_m, block_r), tl.float32)
    for number in range(segments):
        source = ((number * 1 + row * 0) * rows + row) * parts + part
        total += tl.load(low + source[:, None] * block_r + rank_at[None, :], has[:, None], 0.0)
    scale = tl.load(scales + own * parts + part, has, 0.0)
    total = total * scale[:, None]
    result = tl.zeros((block_m, block_n), tl.float32)
    current = _next(own, -1)
    while current != _NONE:
        entry = entries + (current.to(tl.int64) * parts + part) * 3
        b = tl.load(entry + 1).to(tl.pointer_type(kind))
        used = rank_at < tl.load(entry + 2).to(tl.int32)
        factors = tl.load(
            b + rank_at[:, None] * (end - begin) + n[None, :], used[:, None] & there[None, :], 0.0
        )
        mine = tl.where((own == current)[:, None], total, 0.0)
        product = tl.dot(mine, factors.to(tl.float32), input_precision="ieee")
        has_part = (own == current) & (own * 0 + tl.load(entry + 2).to(tl.int32) > 0)
        result = tl.where(has_part[:, None], product, result)
        current = _next(own, current)
    target = y + row[:, None] * y_stride + begin + n[None, :]
    changed = has[:, None] & there[None, :]
    old = tl.load(target, changed, 0.0)
    tl.store(target, (old.to(tl.float32) + result).to(old.dtype), changed)
