"""Tokens from logits: the arithmetic of `ops.sample_row`, one program per row.

Draws use IEEE's basic operations in float64, in the order of `ops.gumbel`, so they are those of the
CPU to the bit. Filters keep the tokens at or above a threshold, which a search finds: with top_k
by counting, exactly; with top_p by adding weights, whose last bits differ from the CPU's.
"""

import triton
import triton.language as tl

from quire.ops.triton.kernels.overlap import begin

_LEAST = tl.constexpr(-2147483648)
_MOST = tl.constexpr(2147483647)


@triton.jit
def mask(logits, rows, words, has_words, out, vocab, stride, num_words, block: tl.constexpr):
    """Copy a row; -infinity for tokens without a bit in its words, if it has words."""
    entry = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    live = at < vocab
    values = tl.load(logits + tl.load(rows + entry) * stride + at, live, 0.0)
    known = at < tl.where(tl.load(has_words + entry) > 0, vocab, 0)
    word = tl.load(words + entry * num_words + at // 32, known, -1)
    values = tl.where(((word >> (at % 32)) & 1) == 0, -float("inf"), values)
    tl.store(out + entry * vocab + at, values, live)


@triton.jit
def bias(out, starts, ids, values, vocab, block: tl.constexpr):
    """Add values to some of a row's logits, each token's once."""
    entry = tl.program_id(0).to(tl.int64)
    end = tl.load(starts + entry + 1)
    for first in range(tl.load(starts + entry), end, block):
        at = first + tl.arange(0, block)
        live = at < end
        where = out + entry * vocab + tl.load(ids + at, live, 0)
        tl.store(where, tl.load(where, live, 0.0) + tl.load(values + at, live, 0.0), live)


@triton.jit
def penalize(out, starts, ids, counts, factors, vocab, block: tl.constexpr):
    """Apply the penalties of the tokens of a row's context.

    factors: float32 [rows, 3]; repetition, frequency, presence.
    """
    entry = tl.program_id(0).to(tl.int64)
    repetition = tl.load(factors + entry * 3)
    frequency, presence = tl.load(factors + entry * 3 + 1), tl.load(factors + entry * 3 + 2)
    end = tl.load(starts + entry + 1)
    for first in range(tl.load(starts + entry), end, block):
        at = first + tl.arange(0, block)
        live = at < end
        where = out + entry * vocab + tl.load(ids + at, live, 0)
        x = tl.load(where, live, 0.0)
        count = tl.load(counts + at, live, 0.0)
        x = tl.where(x > 0.0, tl.div_rn(x, tl.where(live, repetition, 1.0)), x * repetition)
        x = x - frequency * count
        x = x - presence * (count > 0.0).to(tl.float32)
        tl.store(where, x, live)


@triton.jit
def _order(values):
    """Return integers in the order of the floats; both zeros are equal."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _read(source, first, vocab, block: tl.constexpr):
    """Return tokens, logits, and which of them exist."""
    at = first + tl.arange(0, block)
    return at, tl.load(source + at, at < vocab, -float("inf")), at < vocab


@triton.jit
def _scaled(values, peak, temperature):
    return (values.to(tl.float64) - peak.to(tl.float64)) / temperature


@triton.jit
def _weights(
    source, first, vocab, peak, temperature, least, least_x, weighted: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Return the order of some tokens, and their weights: 0 outside of the filter, or 1 each."""
    _, values, there = _read(source, first, vocab, block)
    order = _order(values)
    if weighted:
        x = _scaled(values, peak, temperature)
        weight = tl.where(there & (order >= least) & (x >= least_x), tl.exp(x), 0.0)
    else:
        weight = there.to(tl.float64)
    return order, weight


@triton.jit
def _search(
    source, vocab, wanted, peak, temperature, least, least_x, weighted: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Return the largest order such that the tokens from it on weigh `wanted`; 4 bits a pass."""
    low = tl.full((), _LEAST, tl.int64)
    step = tl.full((), 1 << 28, tl.int64)
    for _ in range(8):
        bounds = low + step * tl.arange(0, 16)
        sums = tl.zeros((16,), tl.float64)
        for first in range(0, vocab, block):
            order, weight = _weights(
                source, first, vocab, peak, temperature, least, least_x, weighted, block
            )
            sums += tl.sum(tl.where(order[:, None] >= bounds[None, :], weight[:, None], 0.0), 0)
        # The first bound is known to be low enough.
        enough = (sums >= wanted) & (tl.arange(0, 16) > 0)
        low += step * tl.sum(enough.to(tl.int64), 0)
        step = step >> 4
    return low


@triton.jit
def _nucleus(source, vocab, peak, temperature, least, least_x, p, block: tl.constexpr):
    """Return the order of the last token in the nucleus, and how many equal ones belong to it.

    A token stays while those before it, in descending order with ties by id, hold less than p.
    """
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab, block):
        order, weight = _weights(
            source, first, vocab, peak, temperature, least, least_x, True, block
        )
        total += tl.sum(weight, 0)
    wanted = p * total
    last = _search(source, vocab, wanted, peak, temperature, least, least_x, True, block)
    before = tl.full((), 0.0, tl.float64)
    each = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab, block):
        order, weight = _weights(
            source, first, vocab, peak, temperature, least, least_x, True, block
        )
        before += tl.sum(tl.where(order > last, weight, 0.0), 0)
        each = tl.maximum(each, tl.max(tl.where(order == last, weight, 0.0), 0))
    room = tl.ceil((wanted - before) / tl.where(each > 0.0, each, 1.0))
    return last, tl.where(each > 0.0, tl.minimum(room, 2.0e9), 2.0e9).to(tl.int32)


@triton.jit
def _hash(h, first, second):
    h = h ^ first
    h = (h ^ (h >> 16)) * 0x85EBCA6B + second
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _log(x):
    """Return the natural logarithm of normal positive numbers, as `gumbel._log`."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1022
    half = (bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000
    m = half.to(tl.float64, bitcast=True)
    small = m <= 0.7071067811865476
    m = tl.where(small, 2.0 * m, m)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = square * 0.0
    for n in tl.static_range(17, 0, -4):
        p = p * (square * square) + (2.0 / n + 2.0 / (n + 2) * square)
    return (exponent - small.to(tl.int64)).to(tl.float64) * 0.6931471805599453 + s * p


@triton.jit
def _gumbel(ids, first, second):
    tokens = ids.to(tl.uint32)
    high = _hash(tokens, first, second).to(tl.int64)
    low = _hash(tokens, second, first).to(tl.int64)
    odd = (high << 21) | (low >> 12 << 1) | 1
    u = odd.to(tl.float64) * 1.1102230246251565e-16
    return -_log(-_log(1.0 - u))


@triton.jit
def draw(
    logits, edited, ints, floats, tokens, vocab, stride, block: tl.constexpr, search: tl.constexpr
):
    """Write a row's token; -1 if its largest logit is not finite.

    ints: int64 [rows, 6]; row of `logits`, row of `edited` or -1, greedy, top_k or 0, and the
        halves of the key, the low one first.
    floats: float64 [rows, 3]; temperature, the least scaled logit by min_p, top_p.
    """
    entry = tl.program_id(0).to(tl.int64)
    number = ints + entry * 6
    source = logits + tl.load(number) * stride
    if tl.load(number + 1) >= 0:
        source = edited + tl.load(number + 1) * vocab
    peak = tl.full((), -float("inf"), tl.float32)
    token = 0
    sick = 0
    for first in range(0, vocab, block):
        at, values, there = _read(source, first, vocab, block)
        sick += tl.sum((values != values).to(tl.int32), 0)
        values = tl.where(values != values, -float("inf"), values)
        top = tl.max(values, 0)
        index = tl.min(tl.where(values == top, at, _MOST), 0)
        token = tl.where(top > peak, index, token)
        peak = tl.maximum(peak, top)
    if (sick > 0) | (tl.abs(peak) == float("inf")):
        token = -1
    elif tl.load(number + 2) == 0:
        temperature, least_x = tl.load(floats + entry * 3), tl.load(floats + entry * 3 + 1)
        p = tl.load(floats + entry * 3 + 2)
        k = tl.load(number + 3)
        least = tl.full((), _LEAST, tl.int64)
        if (k > 0) & (k < vocab):
            least = _search(
                source, vocab, k.to(tl.float64), peak, temperature, least, least_x, False, search
            )
        last = tl.full((), _LEAST - 1, tl.int64)
        room = 0
        if p < 1.0:
            last, room = _nucleus(source, vocab, peak, temperature, least, least_x, p, search)
        low, high = tl.load(number + 4).to(tl.uint32), tl.load(number + 5).to(tl.uint32)
        best = tl.full((), -float("inf"), tl.float64)
        equals = 0
        for first in range(0, vocab, block):
            at, values, there = _read(source, first, vocab, block)
            order = _order(values)
            x = _scaled(values, peak, temperature)
            same = there & (order == last)
            rank = equals + tl.cumsum(same.to(tl.int32), 0)
            equals += tl.sum(same.to(tl.int32), 0)
            kept = there & (order >= least) & (x >= least_x)
            kept = kept & ((order > last) | (same & (rank <= room)))
            score = tl.where(kept, x + _gumbel(at, low, high), -float("inf"))
            top = tl.max(score, 0)
            index = tl.min(tl.where(score == top, at, _MOST), 0)
            token = tl.where(top > best, index, token)
            best = tl.maximum(best, top)
    tl.store(tokens + entry, token.to(tl.int64))


@triton.jit
def fill(ids, last, count, block: tl.constexpr, overlap: tl.constexpr):
    """Replace each id ~slot by the last token of that slot."""
    begin(overlap)
    at = tl.program_id(0) * block + tl.arange(0, block)
    given = tl.load(ids + at, at < count, 0)
    unknown = (at < count) & (given < 0)
    tl.store(ids + at, tl.load(last + (-1 - given), unknown, 0), unknown)


@triton.jit
def peaks(logits, tops, places, vocab, stride, block: tl.constexpr, overlap: tl.constexpr):
    """Write the largest logit of a part of a row, and its first index; NaN if the part has one."""
    begin(overlap)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, values, _ = _read(logits + row * stride, part * block, vocab, block)
    sick = tl.sum((values != values).to(tl.int32), 0)
    values = tl.where(values != values, -float("inf"), values)
    top = tl.max(values, 0)
    place = tl.min(tl.where(values == top, at, _MOST), 0)
    to = row * tl.num_programs(1) + part
    tl.store(tops + to, tl.where(sick > 0, float("nan"), top))
    tl.store(places + to, place)


@triton.jit
def settle(
    tops, places, drawn, entries, slots, last, results, parts, draws: tl.constexpr,
    width: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Write a row's token to its slot of `last`, and with its largest logit to `results`.

    drawn, entries: tokens of the rows that are drawn, and each row's place among them or -1.
    results: float64 [2, rows]; tokens, then largest logits.
    """
    begin(overlap)
    row, rows = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, width)
    values = tl.load(tops + row * parts + at, at < parts, -float("inf"))
    sick = tl.sum((values != values).to(tl.int32), 0)
    peak = tl.max(tl.where(values != values, -float("inf"), values), 0)
    index = tl.load(places + row * parts + at, at < parts, _MOST)
    token = tl.min(tl.where(values == peak, index, _MOST), 0)
    peak = tl.where(sick > 0, float("nan"), peak)
    if draws:
        entry = tl.load(entries + row)
        token = tl.where(entry >= 0, tl.load(drawn + entry, entry >= 0, 0).to(tl.int32), token)
    token = tl.where(tl.abs(peak) < float("inf"), token, 0)  # of a sick row, any that exists
    tl.store(last + tl.load(slots + row), token.to(tl.int64))
    tl.store(results + row, token.to(tl.float64))
    tl.store(results + rows + row, peak.to(tl.float64))


@triton.jit
def totals(logits, rows, tokens, peaks, sums, chosen, ranks, vocab, stride, block: tl.constexpr):
    """Write a row's largest logit, the sum of exp(logit - largest), its token's logit and rank."""
    entry = tl.program_id(0).to(tl.int64)
    source = logits + tl.load(rows + entry) * stride
    own = tl.load(source + tl.load(tokens + entry))
    peak = tl.full((), -float("inf"), tl.float32)
    greater = 0
    for first in range(0, vocab, block):
        _, values, there = _read(source, first, vocab, block)
        peak = tl.maximum(peak, tl.max(values, 0))
        greater += tl.sum((there & (values > own)).to(tl.int32), 0)
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab, block):
        _, values, there = _read(source, first, vocab, block)
        total += tl.sum(tl.exp(values.to(tl.float64) - peak.to(tl.float64)), 0)
    tl.store(peaks + entry, peak)
    tl.store(sums + entry, total)
    tl.store(chosen + entry, own)
    tl.store(ranks + entry, (greater + 1).to(tl.int64))
