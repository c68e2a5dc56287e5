"""The experts of each row, and the rows of each expert in tiles."""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import begin

_LEAST = tl.constexpr(-9223372036854775808)


@triton.jit
def _keys(values, number):
    """Return int64 keys in the order of the floats; of equal ones the first number is largest.

    NaN is above all, and both zeros are equal.
    """
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    order = tl.where(values != values, 0x7FC00000, order).to(tl.int64)
    return (order << 32) | (0x7FFFFFFF - number).to(tl.int64)


@triton.jit
def _value(key):
    """Return the float of a key."""
    order = (key >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _in_top_groups(
    choice, number, there, groups: tl.constexpr, top_groups: tl.constexpr, best: tl.constexpr
):  # fmt: skip
    """Return `choice` with -infinity for the experts of other groups; see `RouteSpec`."""
    keys = tl.where(there, _keys(choice, number), _LEAST)
    first = tl.max(keys, 1)
    score = _value(first)
    if best == 2:
        score += _value(tl.max(tl.where(keys == first[:, None], _LEAST, keys), 1))
    group = tl.arange(0, choice.shape[0])
    left = tl.where(group < groups, _keys(score, group), _LEAST)
    kept = group < 0
    for _ in tl.static_range(top_groups):
        top = tl.max(left, 0)
        kept = kept | (left == top)
        left = tl.where(left == top, _LEAST, left)
    return tl.where(kept[:, None], choice, -float("inf"))


@triton.jit
def route(
    logits, bias, factors, experts, weights, stride, epsilon, least, scale,
    count: tl.constexpr, top_k: tl.constexpr, sigmoid: tl.constexpr, by_logits: tl.constexpr,
    renormalize: tl.constexpr, groups: tl.constexpr, top_groups: tl.constexpr,
    best: tl.constexpr, block_groups: tl.constexpr, block_size: tl.constexpr,
    block_k: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Choose a row's experts and weigh them in float64: see `torch_ops.moe.route`.

    best: experts whose scores are a group's score.
    """
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = count // groups
    group, within = tl.arange(0, block_groups), tl.arange(0, block_size)
    number = group[:, None] * size + within[None, :]
    there = (group < groups)[:, None] & (within < size)[None, :]
    correction = tl.zeros((block_groups, block_size), tl.float32)
    if bias is not None:
        correction = tl.load(bias + number, there, 0.0)
    begin(overlap)
    given = tl.load(logits + row * stride + number, there, -float("inf")).to(tl.float32)
    wide = given.to(tl.float64)
    if sigmoid:
        scores = 1.0 / (1.0 + tl.exp(-wide))
    else:
        sick = tl.sum(tl.sum((given != given).to(tl.int32), 1), 0) > 0
        peak = tl.max(tl.max(tl.where(given != given, -float("inf"), given), 1), 0).to(tl.float64)
        peak = tl.where(sick, float("nan"), peak)
        scores = tl.where(there, tl.exp(wide - peak), 0.0)
        scores = scores / tl.sum(tl.sum(scores, 1), 0)
    choice = given
    if bias is not None:
        choice = scores.to(tl.float32) + correction
    elif not by_logits:
        choice = scores.to(tl.float32)
    if groups > 1:
        choice = _in_top_groups(choice, number, there, groups, top_groups, best)
    left = tl.where(there, _keys(choice, number), _LEAST)
    place = tl.arange(0, block_k)
    chosen, parts = tl.zeros((block_k,), tl.int64), tl.zeros((block_k,), tl.float64)
    for i in tl.static_range(top_k):
        top = tl.max(tl.max(left, 1), 0)
        expert = 0x7FFFFFFF - (top & 0x7FFFFFFF)
        score = tl.sum(tl.sum(tl.where(number == expert, scores, 0.0), 1), 0)
        chosen = tl.where(place == i, expert, chosen)
        parts = tl.where(place == i, score, parts)
        left = tl.where(left == top, _LEAST, left)
    live = place < top_k
    if renormalize:
        divisor = tl.sum(parts, 0) + epsilon
        parts = parts / tl.where(divisor < least, least, divisor)
    if factors is not None:
        parts = parts * tl.load(factors + chosen, live, 0.0).to(tl.float64)
    tl.store(experts + row * top_k + place, chosen, live)
    tl.store(weights + row * top_k + place, (parts * scale).to(tl.float32), live)


@triton.jit
def group(
    experts, row_ids, tile_experts, pairs, count, tiles,
    size: tl.constexpr, block_experts: tl.constexpr, block: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """List the pairs of one expert in its tiles; the program behind the last empties the others.

    experts: int64 [pairs].
    row_ids: int32 [tiles · size]; -1 where there is no pair.
    """
    begin(overlap)
    own, all_experts = tl.program_id(0), tl.arange(0, block_experts)
    lane = tl.arange(0, block)
    counts = tl.zeros((block_experts,), tl.int32)
    for first in range(0, pairs, block):
        live = first + lane < pairs
        expert = tl.load(experts + first + lane, live, 0).to(tl.int32)
        counts += tl.histogram(expert, block_experts, live)
    needed = (counts + size - 1) // size
    begin_tile = tl.sum(tl.where(all_experts < own, needed, 0), 0)
    end_tile = begin_tile + tl.sum(tl.where(all_experts == own, needed, 0), 0)
    end_tile = tl.where(own == count, tiles, end_tile)
    done = 0
    for first in range(0, pairs, block):
        expert = tl.load(experts + first + lane, first + lane < pairs, -1).to(tl.int32)
        mine = expert == own
        rank = done + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(row_ids + begin_tile * size + rank, first + lane, mine)
        done += tl.sum(mine.to(tl.int32), 0)
    for first in range(begin_tile * size + done, end_tile * size, block):
        tl.store(row_ids + first + lane, -1, first + lane < end_tile * size)
    for first in range(begin_tile, end_tile, block):
        expert = tl.minimum(own, count - 1)
        tl.store(tile_experts + first + lane, expert, first + lane < end_tile)


@triton.jit
def heads(
    row_ids, tile_experts, tokens, tiles, size: tl.constexpr, block: tl.constexpr,
    overlap: tl.constexpr,
):  # fmt: skip
    """List the rows of one head, token after token, in `tiles` tiles."""
    begin(overlap)
    head, count = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, block)
    for first in range(0, tiles * size, block):
        token = first + lane
        row = tl.where(token < tokens, token * count + head, -1)
        tl.store(row_ids + head * tiles * size + token, row, token < tiles * size)
    for first in range(0, tiles, block):
        tl.store(tile_experts + head * tiles + first + lane, head, first + lane < tiles)
