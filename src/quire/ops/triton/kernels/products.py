"""Products of rows with weights of every form, for layers, experts and heads.

```
 columns of x   0 … segment │ segment … │ …      each segment is summed by itself, `block_k` columns
                 float32    │  float32  │        at a time, and the segments are added in order
```

A program adds its segments itself, or each segment has a program of its own and the last of them to
end adds all: the same sums in the same order. Which of both depends on the number of rows, the bits
do not. Nor do they depend on the tile: the weight is the left operand of all tiles, which has 64
rows at least, so all of them run the same instructions, for more or fewer rows of x.
"""

import triton
import triton.language as tl

from quire.ops.triton.kernels.elementwise import activated
from quire.ops.triton.kernels.overlap import begin
from quire.ops.triton.kernels.weights import (
    load_codes,
    load_first_codes,
    numbers_of,
    prefetch_codes,
)  # fmt: skip


@triton.jit
def _rows(x, row, k, width, stride, even: tl.constexpr, block_k: tl.constexpr):
    """Return columns from `k` on of rows of x: [block_m, block_k]."""
    at = k + tl.arange(0, block_k)
    where = row[:, None] * stride + at[None, :]
    return tl.load(x + where) if even else tl.load(x + where, (at < width)[None, :], 0.0)


@triton.jit
def _added(
    acc, codes, x, x_row, x_stride, scale, zero, offset, book, w_row, k, width, groups,
    height,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, even: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return acc plus the products of `block_k` columns."""
    parts: tl.constexpr = 2 if halves else 1
    depth: tl.constexpr = block_k // parts
    # Hopper's units add products of 8-bit floats with fewer bits: so only `depth` at a time.
    exact: tl.constexpr = depth if form == "float8" else None
    for part in tl.static_range(parts):
        at = k + part * depth
        rows = _rows(x, x_row, at, width, x_stride, even, depth).to(compute)
        weights = numbers_of(
            codes, scale, zero, offset, book, w_row, at, groups, height, part, halves, form, group,
            depth, block_n, compute,
        )  # fmt: skip
        acc = tl.dot(
            weights, tl.trans(rows), acc, input_precision="ieee", max_num_imprecise_acc=exact,
            out_dtype=acc.dtype,
        )  # fmt: skip
    return acc


@triton.jit
def _sum(
    x, x_row, x_stride, w, scale, zero, offset, book, w_row, codes, start, end, width, stride,
    groups, height,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, segment: tl.constexpr,
    early: tl.constexpr, even: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return the products of rows of a weight and of x over columns [start, end).

    codes: the first `early` tiles.
    segment: columns that are summed by themselves; 0 for all.
    """
    kind: tl.constexpr = tl.int32 if form == "int8" else tl.float32
    acc = tl.zeros((block_n, block_m), kind)
    total = acc
    for i in tl.static_range(early):
        acc = _added(
            acc, codes[i], x, x_row, x_stride, scale, zero, offset, book, w_row,
            start + i * block_k, width, groups, height, form, group, halves, even, block_n, block_k,
            compute,
        )  # fmt: skip
    for k in range(start + early * block_k, end, block_k):
        acc = _added(
            acc, load_codes(w, w_row, k, stride, halves, even, block_k), x, x_row, x_stride, scale,
            zero, offset, book, w_row, k, width, groups, height, form, group, halves, even, block_n,
            block_k, compute,
        )  # fmt: skip
        if segment > 0:  # noqa: SIM102
            if (k + block_k) % segment == 0:
                total += acc
                acc = tl.zeros_like(acc)
    return total + acc


@triton.jit
def _joined(total, parts, plane, place, live, count, segments: tl.constexpr):
    """Return the sum of a tile's segments, and whether it is whole: if all others have ended."""
    plane = plane + tl.zeros((), tl.int64)
    tl.store(parts + tl.program_id(1) * plane + place, total, live)
    tl.debug_barrier()
    last = tl.atomic_add(count, 1, sem="acq_rel", scope="gpu") == segments - 1
    total = tl.zeros_like(total)
    if last:
        for i in tl.static_range(segments):
            total += tl.load(parts + i * plane + place, live, 0, cache_modifier=".cg")
        tl.store(count, 0)
    return total, last


@triton.jit
def _finished(
    total, x_scale, factor, bias, x_row, w_row, biased: tl.constexpr, kind: tl.constexpr,
    gated: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, middle: tl.constexpr,
):  # fmt: skip
    """Return sums as float32, times the scales of rows, plus the bias; activated."""
    result = total.to(tl.float32)
    if x_scale is not None:
        result = result * tl.load(x_scale + x_row)[None, :]
    if factor is not None:
        result = result * tl.load(factor + w_row).to(tl.float32)[:, None]
    if biased:
        result = result + tl.load(bias + w_row).to(tl.float32)[:, None]
    if kind != "none":
        first = result.to(middle).to(tl.float32)
        second = first
        if gated:
            pairs = first.reshape(block_n // 2, 2, block_m).permute(0, 2, 1)
            first, second = tl.split(pairs)
        result = activated(first, second, kind, gated).to(middle)
    return result


@triton.jit
def _target(row, live, column, columns):
    """Return where a tile lies in rows of `columns`, and which of it exists."""
    place = row[None, :] * columns + column[:, None]
    return place, live[None, :] & (column < columns)[:, None]


@triton.jit
def _columns(n, tile_n, num_columns, gated: tl.constexpr, block_n: tl.constexpr):
    """Return a tile's columns of the result, and how many a row has: a gate halves both."""
    column, columns = n, num_columns
    if gated:
        column = tile_n * (block_n // 2) + tl.arange(0, block_n // 2)
        columns = num_columns // 2
    return column, columns


@triton.jit
def _place(tiles_m, tiles_n, together: tl.constexpr):
    """Return a program's tile of rows and of columns: `together` tiles of rows share a weight."""
    number = tl.program_id(0)
    first = number // (together * tiles_n) * together
    size = tl.minimum(tiles_m - first, together)
    within = number % (together * tiles_n)
    return first + within % size, within // size


@triton.jit
def product(
    x, w, scale, zero, offset, book, bias, x_scale, factor, out, parts, counts, row_ids,
    tile_experts, num_rows, num_columns, width, stride, groups, height, x_stride, fan_out, tiles_m,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, biased: tl.constexpr,
    listed: tl.constexpr, kind: tl.constexpr, gated: tl.constexpr, segment: tl.constexpr,
    segments: tl.constexpr, split: tl.constexpr, early: tl.constexpr, ahead: tl.constexpr,
    overlap: tl.constexpr, even: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, compute: tl.constexpr, middle: tl.constexpr,
):  # fmt: skip
    """A tile of rows times a tile of the weight's rows; one segment of the columns if `split`.

    form: as in `numbers_of`; "int8", "float8": x and w are such numbers.
    x_scale, factor: of rows of x and of w, by which sums are multiplied; or None.
    listed: tile i computes rows row_ids[i · block_m …] of the result, -1 for none, with the weight
        of expert tile_experts[i]; result row r is of row r // fan_out of x.
    kind: the activation of the result, which is rounded to `middle` before and after it; or "none".
    gated: it is of the weight's first half, and multiplies the second: a tile has rows of both.
    parts: [segments, rows of the result, num_columns].
    counts: int32, zeros: how many segments of each tile have ended.
    early: tiles of the weight that are read before the kernel before this one has ended.
    ahead: lines of each of its rows, behind those tiles, that the cache reads until then.
    """
    tile, tile_n = _place(tiles_m, tl.cdiv(num_columns, block_n), 8)
    n = tile_n * block_n + tl.arange(0, block_n)
    w_row = tl.minimum(n, num_columns - 1).to(tl.int64)
    if gated:
        w_row = w_row // 2 + w_row % 2 * (num_columns // 2)
    start = tl.program_id(1) * segment
    end = tl.minimum(start + segment, width) if split else width
    codes = load_first_codes(w, w_row, start, stride, early, halves, even, block_k)
    if overlap and ahead > 0:
        prefetch_codes(w, w_row, start + early * block_k, stride, ahead, halves)
    begin(overlap)
    row = (tile * block_m + tl.arange(0, block_m)).to(tl.int64)
    live = row < num_rows
    if listed:
        if tl.load(row_ids + tile * block_m) < 0:  # an empty tile; see `experts.group`
            return
        row = tl.load(row_ids + row).to(tl.int64)
        live = row >= 0
        w_row += tl.load(tile_experts + tile).to(tl.int64) * num_columns
    x_row = tl.where(live, row, 0) // fan_out
    total = _sum(
        x, x_row, x_stride, w, scale, zero, offset, book, w_row, codes, start, end, width, stride,
        groups, height, form, group, halves, 0 if split or segments == 1 else segment, early,
        even, block_m, block_n, block_k, compute,
    )  # fmt: skip
    whole = True
    if split:
        place, there = _target(row, live, n, num_columns)
        count = counts + tl.program_id(0)
        total, whole = _joined(total, parts, num_columns * num_rows, place, there, count, segments)
    if whole:
        result = _finished(
            total, x_scale, factor, bias, x_row, w_row, biased, kind, gated, block_m, block_n,
            middle,
        )  # fmt: skip
        column, columns = _columns(n, tile_n, num_columns, gated, block_n)
        target, exists = _target(row, live, column, columns)
        tl.store(out + target, result.to(out.dtype.element_ty), exists)


@triton.jit
def dequantize(
    w, scale, zero, offset, book, out, num_rows, width, stride, groups, height,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, even: tl.constexpr,
    overlap: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Write a weight's numbers: [num_rows, width]."""
    begin(overlap)
    n = tl.program_id(0) * block_n + tl.arange(0, block_n)
    row = tl.minimum(n, num_rows - 1).to(tl.int64)
    k = tl.program_id(1) * block_k
    compute: tl.constexpr = out.dtype.element_ty
    codes = load_codes(w, row, k, stride, halves, even, block_k)
    parts: tl.constexpr = 2 if halves else 1
    depth: tl.constexpr = block_k // parts
    for part in tl.static_range(parts):
        at = k + part * depth
        values = numbers_of(
            codes, scale, zero, offset, book, row, at, groups, height, part, halves, form, group,
            depth, block_n, compute,
        )  # fmt: skip
        column = at + tl.arange(0, depth)
        live = (n < num_rows)[:, None] & (column < width)[None, :]
        tl.store(out + row[:, None] * width + column[None, :], values, live)


@triton.jit
def combine(
    parts, weights, out, width, top_k, weighted: tl.constexpr, overlap: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Add what a row's experts gave, times their weights, in the order of its choice."""
    begin(overlap)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    live = at < width
    total = tl.zeros((block,), tl.float32)
    for choice in range(top_k):
        part = tl.load(parts + (row * top_k + choice) * width + at, live, 0.0)
        if weighted:
            part = part * tl.load(weights + row * top_k + choice)
        total = total + part
    tl.store(out + row * width + at, total.to(out.dtype.element_ty), live)
