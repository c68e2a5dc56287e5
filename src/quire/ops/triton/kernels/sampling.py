"""Tokens from logits: the arithmetic of `ops.sample_row`. Each part of a row has a program.

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
def _source(logits, edited, number, vocab, stride):
    """Return where an entry's row begins, after its edits."""
    own = tl.load(number + 1)
    return edited + own * vocab if own >= 0 else logits + tl.load(number) * stride


@triton.jit
def _peak(tops, entry, parts, width: tl.constexpr):
    at = tl.arange(0, width)
    return tl.max(tl.load(tops + entry * parts + at, at < parts, -float("inf")), 0)


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
def _column(table, entry, parts, column, columns: tl.constexpr, width: tl.constexpr):
    """Return a number of each part of an entry, float64 [width], 0 behind them."""
    at = tl.arange(0, width)
    return tl.load(table + (entry * parts + at) * columns + column, at < parts, 0.0)


@triton.jit
def _narrowed(lows, sums, entry, wanted, step, parts, width: tl.constexpr):
    """Return the largest order found so far such that the tokens from it on weigh `wanted`."""
    at, bound = tl.arange(0, width), tl.arange(0, 16)
    where = (entry * parts + at[:, None]) * 16 + bound[None, :]
    total = tl.sum(tl.load(sums + where, at[:, None] < parts, 0.0), 0)
    enough = (total >= wanted) & (bound > 0)  # the first bound is known to be low enough
    return tl.load(lows + entry) + step * tl.sum(enough.to(tl.int64), 0)


@triton.jit
def _least(ints, lows, sums, entry, vocab, parts, width: tl.constexpr):
    """Return the order of the last token that top_k keeps."""
    k = tl.load(ints + entry * 6 + 3)
    least = tl.full((), _LEAST, tl.int64)
    if (k > 0) & (k < vocab):
        least = _narrowed(lows, sums, entry, k.to(tl.float64), 1, parts, width)
    return least


@triton.jit
def narrow(
    logits, edited, ints, floats, tops, low_in, low_out, sum_in, sum_out, mass, k_lows, k_sums,
    vocab, stride, parts, shift, weighted: tl.constexpr, first: tl.constexpr, block: tl.constexpr,
    search: tl.constexpr, width: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Weigh a part's tokens from 16 bounds on: one pass of a search, 4 bits each.

    A pass reads the sums of the one before and continues from the bound that they tell.

    ints: int64 [entries, 6]; row of `logits`, row of `edited` or -1, greedy, top_k or 0, and the
        halves of the key, the low one first.
    floats: float64 [entries, 3]; temperature, the least scaled logit by min_p, top_p.
    sum_in, sum_out: float64 [entries, parts, 16].
    mass: float64 [entries, parts]; all that passes top_k and min_p.
    weighted: search for top_p by weight, else for top_k by counting.
    """
    begin(overlap)
    entry, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number = ints + entry * 6
    k, p = tl.load(number + 3), tl.load(floats + entry * 3 + 2)
    temperature, least_x = tl.load(floats + entry * 3), tl.load(floats + entry * 3 + 1)
    wanted = k.to(tl.float64)
    if weighted:
        wanted = p * tl.sum(_column(mass, entry, parts, 0, 1, width), 0)
        active = p < 1.0
    else:
        active = (k > 0) & (k < vocab)
    if active & (tl.load(number + 2) == 0):
        low = tl.full((), _LEAST, tl.int64)
        if not first:
            low = _narrowed(low_in, sum_in, entry, wanted, tl.full((), 16, tl.int64) << shift,
                            parts, width)  # fmt: skip
        tl.store(low_out + entry, low)  # the same from each part
        least = tl.full((), _LEAST, tl.int64)
        if weighted:
            least = _least(ints, k_lows, k_sums, entry, vocab, parts, width)
        source, peak = (
            _source(logits, edited, number, vocab, stride), _peak(tops, entry, parts, width)
        )  # fmt: skip
        bounds = low + (tl.arange(0, 16).to(tl.int64) << shift)
        sums = tl.zeros((16,), tl.float64)
        for begun in range(part * block, (part + 1) * block, search):
            order, weight = _weights(
                source, begun, vocab, peak, temperature, least, least_x, weighted, search
            )
            sums += tl.sum(tl.where(order[:, None] >= bounds[None, :], weight[:, None], 0.0), 0)
        to = entry * parts + part
        tl.store(sum_out + to * 16 + tl.arange(0, 16), sums)
        if weighted and first:
            tl.store(mass + to, tl.sum(tl.where(tl.arange(0, 16) == 0, sums, 0.0), 0))


@triton.jit
def ties(
    logits, edited, ints, floats, tops, lows, sums, mass, k_lows, k_sums, found, vocab, stride,
    parts, block: tl.constexpr, width: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Write what top_p needs to know of a part, float64 [entries, parts, 3]: the weight of the
    tokens before the last of the nucleus, the weight of one that equals it, and their number.
    """
    begin(overlap)
    entry, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, p = ints + entry * 6, tl.load(floats + entry * 3 + 2)
    if (p < 1.0) & (tl.load(number + 2) == 0):
        wanted = p * tl.sum(_column(mass, entry, parts, 0, 1, width), 0)
        last = _narrowed(lows, sums, entry, wanted, 1, parts, width)
        least = _least(ints, k_lows, k_sums, entry, vocab, parts, width)
        order, weight = _weights(
            _source(logits, edited, number, vocab, stride), part * block, vocab,
            _peak(tops, entry, parts, width), tl.load(floats + entry * 3), least,
            tl.load(floats + entry * 3 + 1), True, block,
        )  # fmt: skip
        to = found + (entry * parts + part) * 3
        tl.store(to, tl.sum(tl.where(order > last, weight, 0.0), 0))
        tl.store(to + 1, tl.max(tl.where(order == last, weight, 0.0), 0))
        tl.store(to + 2, tl.sum((order == last).to(tl.float64), 0))


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
def scores(
    logits, edited, ints, floats, tops, lows, sums, mass, k_lows, k_sums, found, best, places,
    vocab, stride, parts, block: tl.constexpr, width: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Write the largest score of a part's tokens that the filters keep, and the first such token.

    Of tokens that equal the last of the nucleus, the first ones stay, as long as those before
    them, in descending order, hold less than top_p.
    """
    begin(overlap)
    entry, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, p = ints + entry * 6, tl.load(floats + entry * 3 + 2)
    if tl.load(number + 2) == 0:
        least = _least(ints, k_lows, k_sums, entry, vocab, parts, width)
        last = tl.full((), _LEAST - 1, tl.int64)
        room = tl.full((), 0.0, tl.float64)
        if p < 1.0:
            wanted = p * tl.sum(_column(mass, entry, parts, 0, 1, width), 0)
            last = _narrowed(lows, sums, entry, wanted, 1, parts, width)
            before = tl.sum(_column(found, entry, parts, 0, 3, width), 0)
            each = tl.max(_column(found, entry, parts, 1, 3, width), 0)
            room = tl.ceil((wanted - before) / tl.where(each > 0.0, each, 1.0))
            room = tl.where(each > 0.0, room, 2.0e9)
            equals = _column(found, entry, parts, 2, 3, width)
            room -= tl.sum(tl.where(tl.arange(0, width) < part, equals, 0.0), 0)
        source = _source(logits, edited, number, vocab, stride)
        at, values, there = _read(source, part * block, vocab, block)
        order = _order(values)
        x = _scaled(values, _peak(tops, entry, parts, width), tl.load(floats + entry * 3))
        same = there & (order == last)
        rank = tl.cumsum(same.to(tl.int32), 0).to(tl.float64)
        kept = there & (order >= least) & (x >= tl.load(floats + entry * 3 + 1))
        kept = kept & ((order > last) | (same & (rank <= room)))
        low, high = tl.load(number + 4).to(tl.uint32), tl.load(number + 5).to(tl.uint32)
        score = tl.where(kept, x + _gumbel(at, low, high), -float("inf"))
        top = tl.max(score, 0)
        tl.store(best + entry * parts + part, top)
        place = tl.min(tl.where(score == top, at, _MOST), 0)
        tl.store(places + entry * parts + part, place)


@triton.jit
def fill(ids, last, count, block: tl.constexpr, overlap: tl.constexpr):
    """Replace each id ~slot by the last token of that slot."""
    begin(overlap)
    at = tl.program_id(0) * block + tl.arange(0, block)
    given = tl.load(ids + at, at < count, 0)
    unknown = (at < count) & (given < 0)
    tl.store(ids + at, tl.load(last + (-1 - given), unknown, 0), unknown)


@triton.jit
def peaks(
    logits, edited, ints, tops, places, vocab, stride, given: tl.constexpr, block: tl.constexpr,
    overlap: tl.constexpr,
):  # fmt: skip
    """Write the largest logit of a part of a row, and its first index; NaN if the part has one.

    given: entries are those of `ints`, else the rows of `logits`.
    """
    begin(overlap)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = logits + row * stride
    if given:
        source = _source(logits, edited, ints + row * 6, vocab, stride)
    at, values, _ = _read(source, part * block, vocab, block)
    sick = tl.sum((values != values).to(tl.int32), 0)
    values = tl.where(values != values, -float("inf"), values)
    top = tl.max(values, 0)
    place = tl.min(tl.where(values == top, at, _MOST), 0)
    to = row * tl.num_programs(1) + part
    tl.store(tops + to, tl.where(sick > 0, float("nan"), top))
    tl.store(places + to, place)


@triton.jit
def settle(
    ints, tops, places, best, drawn, slots, last, results, parts, given: tl.constexpr,
    kept: tl.constexpr, width: tl.constexpr, overlap: tl.constexpr,
):  # fmt: skip
    """Write a row's token and its largest logit, not finite if the token is -1, to `results`.

    best, drawn: score and token of each part, where rows are not greedy.
    results: float64 [2, rows]; tokens, then largest logits.
    kept: write the token to its slot of `last`, too.
    """
    begin(overlap)
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    at = tl.arange(0, width)
    where, live = row * parts + at, at < parts
    values = tl.load(tops + where, live, -float("inf"))
    sick = tl.sum((values != values).to(tl.int32), 0)
    peak = tl.max(tl.where(values != values, -float("inf"), values), 0)
    index = tl.load(places + where, live, _MOST)
    token = tl.min(tl.where(values == peak, index, _MOST), 0)
    peak = tl.where(sick > 0, float("nan"), peak)
    if given:  # noqa: SIM102, as Triton decides it when it compiles
        if tl.load(ints + row * 6 + 2) == 0:
            score = tl.load(best + where, live, -float("inf"))
            index = tl.load(drawn + where, live, _MOST)
            token = tl.min(tl.where(score == tl.max(score, 0), index, _MOST), 0)
    token = tl.where(tl.abs(peak) < float("inf"), token, -1)
    if kept:  # of a sick row, any token that exists
        tl.store(last + tl.load(slots + row), tl.maximum(token, 0).to(tl.int64))
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
