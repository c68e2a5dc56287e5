"""Softmax over keys in parts, of which each has a row's maximum, sum and weighted values.

Maxima are powers of two's: a weight is 2^(score · rate - maximum). A part begins at a multiple of
`segment` in its sequence, so the same parts are merged in the same order wherever they were made.
"""

import triton
import triton.language as tl


@triton.jit
def weigh(scores, rate, top, total):
    """Return the weights of scores · rate, the part's new maximum and sum, and its factor."""
    new_top = tl.maximum(top, tl.max(scores, 1) * rate)
    pivot = tl.where(new_top == -float("inf"), 0.0, new_top)
    # Kernels are compiled without fused multiply-adds, except for this one.
    weight = tl.exp2(tl.fma(scores, tl.zeros_like(scores) + rate, -pivot[:, None]))
    keep = tl.exp2(top - pivot)
    return weight, new_top, total * keep + tl.sum(weight, 1), keep


@triton.jit
def merged(top, total, acc, top_2, total_2, acc_2):
    """Return two parts as one; a part that has seen nothing changes nothing."""
    new_top = tl.maximum(top, top_2)
    pivot = tl.where(new_top == -float("inf"), 0.0, new_top)
    keep = tl.exp2(top - pivot)
    keep_2 = tl.exp2(top_2 - pivot)
    new_acc = acc * keep[:, None] + acc_2 * keep_2[:, None]
    return new_top, total * keep + total_2 * keep_2, new_acc


@triton.jit
def store(part_acc, part_top, part_total, target, live, top, total, acc, width: tl.constexpr):
    """Store a part of rows; `target` is each row's number among the parts."""
    at = tl.arange(0, acc.shape[1])
    tl.store(part_top + target, top, live)
    tl.store(part_total + target, total, live)
    mask = live[:, None] & (at < width)[None, :]
    tl.store(part_acc + target[:, None] * width + at[None, :], acc, mask)


@triton.jit
def folded(
    part_acc, part_top, part_total, target, live, count, width: tl.constexpr,
    rows: tl.constexpr, block_width: tl.constexpr,
):  # fmt: skip
    """Return the stored parts `target`, `target` + 1, … of rows as one."""
    at = tl.arange(0, block_width)
    mask = live[:, None] & (at < width)[None, :]
    top = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    acc = tl.zeros((rows, block_width), tl.float32)
    for number in tl.range(0, count, loop_unroll_factor=4):
        source = target + number
        # Other processors wrote them: not from this one's own cache.
        top_2 = tl.load(part_top + source, live, -float("inf"), cache_modifier=".cg")
        total_2 = tl.load(part_total + source, live, 0.0, cache_modifier=".cg")
        first = part_acc + source[:, None] * width
        acc_2 = tl.load(first + at[None, :], mask, 0.0, cache_modifier=".cg")
        top, total, acc = merged(top, total, acc, top_2, total_2, acc_2)
    return top, total, acc
