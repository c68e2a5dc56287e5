"""Products of rows with weights of every form, for layers, experts and heads.

```
 columns of x   0 … segment │ segment … │ …      each segment is summed by itself, `block_k` columns
                 float32    │  float32  │        at a time, and the segments are added in order
```

A program adds its segments itself, or each segment has a program of its own and `add_segments` adds
them: the same sums in the same order. Which of both depends on the number of rows, the bits do not.
"""

import triton
import triton.language as tl


@triton.jit
def _weights(
    w, scale, zero, offset, book, row, live, k, width, groups,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, block_k: tl.constexpr,
    block_n: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """Return [block_n, block_k] of the weight from column `k` on, of type `compute`.

    form: "dense"; "codes", "zeros" and "offsets", which are scaled by group; "book", whose codes
        are looked up first.
    halves: a byte has the codes of two columns, the first in its low half.
    """
    if halves:
        at = k // 2 + tl.arange(0, block_k // 2)
        there = live[:, None] & (at < width // 2)[None, :]
        pair = tl.load(w + row[:, None] * (width // 2) + at[None, :], there, 0)
        codes = tl.join(pair & 15, pair >> 4).reshape(block_n, block_k)
    else:
        at = k + tl.arange(0, block_k)
        there = live[:, None] & (at < width)[None, :]
        codes = tl.load(w + row[:, None] * width + at[None, :], there, 0.0)
    values = codes.to(compute)
    if form != "dense":
        column = k + tl.arange(0, block_k)
        there = live[:, None] & (column < width)[None, :]
        where = row[:, None] * groups + (column // group)[None, :]
        wide = codes.to(tl.float32)
        if form == "book":
            wide = tl.load(book + codes.to(tl.int32))
        if form == "zeros":
            wide = wide - tl.load(zero + where, there, 0).to(tl.float32)
        wide = wide * tl.load(scale + where, there, 0).to(tl.float32)
        if form == "offsets":
            wide = wide + tl.load(offset + where, there, 0).to(tl.float32)
        values = wide.to(compute)
    return values


@triton.jit
def _finished(total, x_scale, scale, bias, x_row, w_row, live_m, live_n, integer: tl.constexpr,
              biased: tl.constexpr):  # fmt: skip
    """Return sums as float32, scaled if they are of integers, plus the bias."""
    result = total.to(tl.float32)
    if integer:
        result = result * tl.load(x_scale + x_row, live_m, 0.0)[:, None]
        result = result * tl.load(scale + w_row, live_n, 0).to(tl.float32)[None, :]
    if biased:
        result = result + tl.load(bias + w_row, live_n, 0.0).to(tl.float32)[None, :]
    return result


@triton.jit
def product(
    x, w, scale, zero, offset, book, bias, x_scale, out, parts, row_ids, tile_experts,
    num_rows, num_columns, width, groups, x_stride, segments, fan_out,
    form: tl.constexpr, group: tl.constexpr, halves: tl.constexpr, biased: tl.constexpr,
    listed: tl.constexpr, split: tl.constexpr, segment: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, compute: tl.constexpr,
):  # fmt: skip
    """A tile of rows times a tile of the weight's rows; one segment of the columns if `split`.

    form: as in `_weights`, or "int8": x and w are 8-bit integers, scaled by row.
    listed: tile i computes rows row_ids[i · block_m …] of the result, -1 for none, with the weight
        of expert tile_experts[i]; result row r is of row r // fan_out of x.
    parts: [segments, rows of the result, num_columns].
    """
    tile = tl.program_id(0)
    result_row = (tile * block_m + tl.arange(0, block_m)).to(tl.int64)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    live_n = n < num_columns
    w_row = n.to(tl.int64)
    live_m = result_row < num_rows
    if listed:
        result_row = tl.load(row_ids + result_row).to(tl.int64)
        live_m = result_row >= 0
        w_row += tl.load(tile_experts + tile).to(tl.int64) * num_columns
    x_row = result_row // fan_out
    first, last = 0, tl.cdiv(width, segment)
    if split:
        first = tl.program_id(2)
        last = first + 1
    integer: tl.constexpr = form == "int8"
    kind: tl.constexpr = tl.int32 if integer else tl.float32
    total = tl.zeros((block_m, block_n), kind)
    for number in range(first, last):
        acc = tl.zeros((block_m, block_n), kind)
        for k in range(number * segment, tl.minimum((number + 1) * segment, width), block_k):
            at = k + tl.arange(0, block_k)
            there = live_m[:, None] & (at < width)[None, :]
            rows = tl.load(x + x_row[:, None] * x_stride + at[None, :], there, 0)
            if integer:
                mask = live_n[:, None] & (at < width)[None, :]
                weights = tl.load(w + w_row[:, None] * width + at[None, :], mask, 0)
                acc = tl.dot(rows, tl.trans(weights), acc)
            else:
                weights = _weights(
                    w, scale, zero, offset, book, w_row, live_n, k, width, groups,
                    form, group, halves, block_k, block_n, compute,
                )  # fmt: skip
                acc = tl.dot(rows.to(compute), tl.trans(weights), acc, input_precision="ieee")
        total = total + acc
    target = result_row[:, None] * num_columns + n[None, :]
    live = live_m[:, None] & live_n[None, :]
    if split:
        plane = first.to(tl.int64) * num_rows * num_columns
        tl.store(parts + plane + target, total, live)
    else:
        result = _finished(
            total, x_scale, scale, bias, x_row, w_row, live_m, live_n, integer, biased
        )
        tl.store(out + target, result.to(out.dtype.element_ty), live)


@triton.jit
def add_segments(
    parts,
    scale,
    bias,
    x_scale,
    out,
    segments,
    num_rows,
    num_columns,
    integer: tl.constexpr,
    biased: tl.constexpr,
    block: tl.constexpr,
):
    """Add the segments of one row, in their order."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * block + tl.arange(0, block)
    live = n < num_columns
    kind: tl.constexpr = tl.int32 if integer else tl.float32
    total = tl.zeros((block,), kind)
    for number in range(segments):
        at = ((row * 0 + number) * num_rows + row) * num_columns + n
        total = total + tl.load(parts + at, live, 0)
    result = total.to(tl.float32)
    if integer:
        result = result * tl.load(x_scale + row)
        result = result * tl.load(scale + n, live, 0).to(tl.float32)
    if biased:
        result = result + tl.load(bias + n, live, 0.0).to(tl.float32)
    tl.store(out + row * num_columns + n, result.to(out.dtype.element_ty), live)


@triton.jit
def quantize_rows(x, out, scales, width, stride, block: tl.constexpr):
    """Write each row as 8-bit integers with a scale: round(x / scale), ties to even."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    live = at < width
    values = tl.load(x + row * stride + at, live, 0.0).to(tl.float32)
    sick = tl.sum((values != values).to(tl.int32), 0) > 0
    scale = tl.max(tl.abs(values), 0) / 127.0
    scale = tl.where(sick, float("nan"), scale)
    over = values / tl.where(scale == 0.0, 1.0, scale)
    codes = (over + 12582912.0) - 12582912.0
    codes = tl.where((codes >= -127.0) & (codes <= 127.0), codes, 0.0)
    tl.store(out + row * width + at, codes.to(tl.int8), live)
    tl.store(scales + row, scale)


@triton.jit
def combine(parts, weights, out, width, top_k, weighted: tl.constexpr, block: tl.constexpr):
    """Add what a row's experts gave, times their weights, in the order of its choice."""
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
