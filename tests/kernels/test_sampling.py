"""The native sampler: every choice against the float64 reference on fresh random rows.

The draw is the reference's to the bit. Only where top_p ends may differ: native and reference sum
weights in another order. With weights that differ by some 2^-50 and at most VOCAB of them, two such
sums, relative to the total, differ by less than EPSILON. A closer comparison is not tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from quire import _native
from quire.core.config import LogprobsMode
from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.ops import filters
from quire.ops.filters import FloatRow
from quire.ops.gumbel import draw, uniforms
from quire.ops.native.kernels import native_kernels
from quire.ops.reported import ReportedRow, report_row
from quire.ops.sample_row import LogitEdits, SampleRow
from quire.ops.torch_ops import sampling
from tests.examples import examples
from tests.kernels.fused_common import SEED, each_isa
from tests.native import SamplingKernels

VOCAB = 151_936
EPSILON = 1e-10  # > VOCAB · 2^-50, which bounds the sums' errors
INF = float("inf")


def new_sampler(isa: str | None = None, threads: int = 1) -> SamplingKernels:
    return SamplingKernels(native_kernels(isa), _native.Pool(threads))


def new_rng() -> np.random.Generator:
    print(f"QUIRE_TEST_SEED={SEED}")  # pytest shows it when the test fails
    return np.random.default_rng(SEED)


def drawn(
    kernels: SamplingKernels, logits: FloatRow, params: SamplingParams, keys: Sequence[int]
) -> list[int]:
    rows = [SampleRow(0, params, key) for key in keys]
    return kernels.sample(torch.from_numpy(logits)[None], rows)


def favouring(token: int, second: int) -> int:
    """Return a key whose hash of `token` is 0, which makes its noise at least log(2^32)."""
    h = (-second * pow(0x85EBCA6B, -1, 2**32)) % 2**32  # what the second multiplication gets
    h ^= h >> 16
    assert uniforms(np.array([token]), second << 32 | h ^ token)[0] < 2.0**-32
    return second << 32 | h ^ token


def close_to_the_edge(logits: FloatRow, params: SamplingParams) -> bool:
    """Whether rounding may decide where the nucleus ends."""
    if params.top_p == 1.0:
        return False
    weights = np.exp(filters.filtered(logits, params.replace(top_p=1.0))[1])
    mass = np.cumsum(np.sort(weights)[::-1]) / weights.sum()
    return bool(np.abs(mass - params.top_p).min() < EPSILON)


def check(
    kernels: SamplingKernels, logits: FloatRow, params: SamplingParams, rng: np.random.Generator
) -> None:
    """Draw with random keys, and with some that favour tokens at the edge of what is kept."""
    ids, scaled = filters.filtered(logits, params)
    order = np.argsort(-logits, kind="stable")
    inside = np.isin(order, np.arange(len(logits)) if ids is None else ids)
    edge = [*order[inside][-2:], *order[inside][:1], *order[~inside][:2]]
    keys = [favouring(int(token), int(rng.integers(2**32))) for token in edge]
    keys += rng.integers(2**64, size=3, dtype=np.uint64).tolist()
    chosen = [draw(scaled, ids, key) for key in keys]
    expected = chosen if ids is None else ids[chosen].tolist()
    assert drawn(kernels, logits, params, keys) == expected, params


def random_params(rng: np.random.Generator, vocab: int) -> SamplingParams:
    def sometimes(value: float, otherwise: float) -> float:
        return value if rng.random() < 0.5 else otherwise

    return SamplingParams(
        temperature=float(np.exp(rng.uniform(-3, 1.5))),
        top_k=int(sometimes(int(np.exp(rng.uniform(0, np.log(vocab)))), 0)),
        top_p=sometimes(float(rng.uniform(0.01, 0.9999)), 1.0),
        min_p=sometimes(float(np.exp(rng.uniform(-8, 0))), 0.0),
    )


def random_row(rng: np.random.Generator, vocab: int) -> FloatRow:
    """Flat or peaked, smooth or full of ties, with or without what is ruled out."""
    row = rng.normal(0, np.exp(rng.uniform(-2, 2.5)), vocab)
    if rng.random() < 0.4:
        row = row.round(int(rng.integers(0, 3)))
    if rng.random() < 0.3:
        row[rng.random(vocab) < rng.uniform(0, 1)] = -INF
        row[rng.integers(vocab)] = 1.0
    if rng.random() < 0.2:
        row.sort()
    return row.astype(np.float32)


@each_isa
@seed(SEED)
@settings(max_examples=examples(200), deadline=None, database=None)
@given(row_seed=st.integers(0, 2**32), vocab=st.integers(1, 700))
def test_draws_are_the_references(isa: str, row_seed: int, vocab: int) -> None:
    rng = np.random.default_rng(row_seed)
    logits, params = random_row(rng, vocab), random_params(rng, vocab)
    assume(not close_to_the_edge(logits, params))
    check(new_sampler(isa), logits, params, rng)


@each_isa
def test_large_vocabularies(isa: str) -> None:
    """Long enough for the groups of top_k, the histograms of top_p and many blocks of the draw."""
    rng, kernels = new_rng(), new_sampler(isa)
    tested = 0
    for vocab in (5_000, 50_257, VOCAB):
        for _ in range(6):
            logits, params = random_row(rng, vocab), random_params(rng, vocab)
            if close_to_the_edge(logits, params):
                continue
            check(kernels, logits, params, rng)
            tested += 1
    assert tested > 0


@each_isa
def test_rows_of_which_a_sample_misleads(isa: str) -> None:
    """The nucleus is looked for below a logit that one token in many suggests."""
    kernels = new_sampler(isa)
    for vocab in (8_192, 10_000, VOCAB):
        for height in (-3.0, 0.5, 4.0, 30.0) if vocab < VOCAB else (0.5,):
            logits = new_rng().normal(0, 0.1, vocab).astype(np.float32)
            logits[:: vocab // 1024] += np.float32(height)
            for p in (0.05, 0.9, 0.9999) if vocab < VOCAB else (0.9,):
                params = SamplingParams(top_p=p)
                if close_to_the_edge(logits, params):
                    continue
                check(kernels, logits, params, new_rng())


@each_isa
def test_ties_at_the_edge_of_the_nucleus_go_by_id(isa: str) -> None:
    """Equal weights, whose sums are exact in any order."""
    kernels = new_sampler(isa)
    for vocab in (1, 3, 64, 65, 1_000, 40_000):
        logits = np.full(vocab, -2.5, dtype=np.float32)
        for p in (1e-9, 0.25, 0.5, 0.75, 1 - 2**-20):
            params = SamplingParams(top_p=p)
            kept = math.ceil(p * vocab)
            keys = [favouring(token, 7) for token in (0, kept - 1, kept)]
            first, last, beyond = drawn(kernels, logits, params, keys)
            assert (first, last) == (0, kept - 1)
            assert beyond < kept


@each_isa
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-6, 1e-3, 100.0])
def test_any_temperature_and_any_logits(isa: str, temperature: float) -> None:
    kernels = new_sampler(isa)
    largest = float(np.finfo(np.float32).max)
    logits = np.array([-largest, 3.0, -INF, 3.5, largest / 2, -0.0, 1e-45], dtype=np.float32)
    for row in (logits, logits[:4], logits[2:6], logits[5:]):
        for extra in ({}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 1.0}, {"min_p": 1e-300}):
            params = SamplingParams(temperature=temperature, **extra)  # type: ignore[arg-type]
            check(kernels, row, params, new_rng())


@each_isa
def test_edits_are_the_references_to_the_bit(isa: str) -> None:
    """Seen in the largest logit of what is left when the larger are banned one after another."""
    rng, kernels = new_rng(), new_sampler(isa)
    greedy = SamplingParams(temperature=0.0)
    for vocab in (1, 40, 3_000):
        logits = rng.normal(0, 3, vocab).astype(np.float32).round(1)

        def some(most: int, vocab: int = vocab) -> NDArray[np.int64]:
            return rng.permutation(vocab)[: rng.integers(min(most, vocab) + 1)].astype(np.int64)

        def values(ids: NDArray[np.int64]) -> FloatRow:
            return rng.normal(0, 5, len(ids)).astype(np.float32)

        for _ in range(30):
            bias, counted = some(20), some(200)
            edits = LogitEdits(
                allowed=np.append(some(30), 0) if rng.random() < 0.5 else None,
                bias_ids=bias,
                bias=values(bias),
                counted=counted,
                counts=rng.integers(0, 4, len(counted)).astype(np.float32),
                repetition=float(rng.uniform(0.1, 3)),
                frequency=float(rng.uniform(-2, 2)),
                presence=float(rng.uniform(-2, 2)),
            )
            matrix = torch.from_numpy(logits)[None]
            order = []
            while len(order) < min(vocab, 25):
                edits.banned = np.array(order, dtype=np.int64)
                rows = [SampleRow(0, greedy, edits=edits)]
                tokens = kernels.sample(matrix, rows)
                assert tokens == sampling.sample(matrix, rows)
                if tokens == [-1]:
                    break
                order += tokens


@each_isa
def test_a_row_is_the_same_alone_in_any_batch_on_any_threads(isa: str) -> None:
    rng = new_rng()
    n, vocab = 24, 3_001
    wide = torch.from_numpy(np.stack([random_row(rng, vocab + 5) for _ in range(n)]))
    logits = wide[:, 2 : vocab + 2]  # rows apart
    logits[:, 0] = 0.0
    rows = []
    for i in range(n):
        ids = rng.permutation(vocab)[:50].astype(np.int64)
        edits = LogitEdits(counted=ids, counts=np.ones(50, dtype=np.float32), presence=0.5)
        params = random_params(rng, vocab)
        rows.append(SampleRow(i, params, i * 2**57, edits if i % 2 else None))
    before = logits.clone()
    kernels = new_sampler(isa)
    alone = [kernels.sample(logits, [row])[0] for row in rows]
    entries = [raw(kernels, logits, [i], [alone[i]], [i % 7])[0] for i in range(n)]
    for threads in (1, 2, 3):
        kernels = new_sampler(isa, threads)
        for _ in range(3):
            order = rng.permutation(n).tolist()
            chosen = kernels.sample(logits, [rows[i] for i in order])
            assert chosen == [alone[i] for i in order]
            wanted = raw(kernels, logits, order, chosen, [i % 7 for i in order])
            assert wanted == [entries[i] for i in order]
    assert torch.equal(logits, before)


def raw(
    kernels: Any, logits: Tensor, rows: list[int], tokens: list[int], counts: list[int]
) -> list[TokenLogprobs]:
    wanted = [ReportedRow(*each) for each in zip(rows, tokens, counts, strict=True)]
    return kernels.report(logits, wanted, "raw_logprobs")


@each_isa
def test_sums_of_weights_are_accurate(isa: str) -> None:
    """Seen in log-probabilities."""
    rng, kernels = new_rng(), new_sampler(isa)
    for vocab in (1, 8, 511, 513, 20_000):
        logits = random_row(rng, vocab)
        token = int(logits.argmax())
        x = logits.astype(np.float64) - float(logits.max())
        exact = -math.log(math.fsum(math.exp(v) for v in x))
        rows = torch.from_numpy(logits)[None]
        [entry] = raw(kernels, rows, [0], [token], [3])
        # The sum: a weight's error, 32 additions in a run's lane, one a run. Its logarithm, the
        # maximum added and subtracted, and the oracle's: a rounding each.
        magnitude = abs(exact) + abs(float(logits.max()))
        units = 8 + 40 + vocab / 512 + 4 * magnitude
        assert abs(entry.logprobs[0] - exact) <= units * 2.0**-53


@each_isa
def test_logprobs_are_the_references(isa: str) -> None:
    rng, kernels = new_rng(), new_sampler(isa)
    for vocab in (1, 2, 100, 10_000, VOCAB):
        logits = torch.from_numpy(np.stack([random_row(rng, vocab) for _ in range(2)]))
        tokens = rng.integers(vocab, size=2).tolist()
        for k in (0, 1, 20):
            actual = raw(kernels, logits, [1, 0], tokens, [k, 2])
            expected = raw(sampling, logits, [1, 0], tokens, [k, 2])
            for a, b in zip(actual, expected, strict=True):
                assert (a.token_ids, a.rank) == (b.token_ids, b.rank)
                np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-11)


@each_isa
def test_reports_are_the_references(isa: str) -> None:
    rng, kernels = new_rng(), new_sampler(isa)
    modes: list[LogprobsMode] = [*get_args(LogprobsMode)]
    for vocab in [1, 2, *[100] * 10, *[3_000] * 5]:
        logits = np.stack([random_row(rng, vocab) for _ in range(4)])
        wanted = []
        for row, count in enumerate([0, 20, vocab, 3]):
            ids = rng.permutation(vocab)[: vocab // 2].astype(np.int64)
            edits = LogitEdits(bias_ids=ids, bias=rng.normal(0, 2, len(ids)).astype(np.float32))
            params, edited = random_params(rng, vocab), logits[row].copy()
            edits.apply(edited)
            if row == 3:
                params = SamplingParams(temperature=0.0)
            elif close_to_the_edge(edited, params):
                params = params.replace(top_p=1.0)
            sampled, named = SampleRow(row, params, edits=edits), rng.integers(vocab, size=row)
            token = int(edited.argmax())
            wanted.append(ReportedRow(row, token, count, named.tolist(), sampled))
        wanted.append(ReportedRow(1, 0, 2))
        for mode in modes:
            order = [wanted[i] for i in rng.permutation(len(wanted))]
            found = kernels.report(torch.from_numpy(logits), order, mode)
            for row, entry in zip(order, found, strict=True):
                expected = report_row(logits[row.row], row, mode)
                assert (entry.token_ids, entry.rank) == (expected.token_ids, expected.rank)
                assert entry.num_named == len(row.named)
                values = entry.logprobs, expected.logprobs
                np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-11)


@each_isa
def test_rows_without_a_largest_logit_have_no_token(isa: str) -> None:
    kernels = new_sampler(isa)
    logits = torch.zeros(5, 100)
    logits[1, 70] = math.nan
    logits[2, 99] = INF
    logits[3] = -INF
    logits[4, :] = -INF
    logits[4, 3] = -1.0
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=5), SamplingParams()):
        tokens = kernels.sample(logits, [SampleRow(i, params) for i in range(5)])
        assert tokens == [0, -1, -1, -1, 3]
    everything = LogitEdits(banned=np.arange(100))
    assert kernels.sample(logits, [SampleRow(0, SamplingParams(), edits=everything)]) == [-1]
    assert kernels.sample(logits, []) == []
    assert raw(kernels, logits, [], [], []) == []


def test_what_does_not_fit_is_refused() -> None:
    kernels, logits = new_sampler(), torch.ones(2, 8)
    greedy = SamplingParams(temperature=0.0)
    for bad in (logits.bfloat16(), logits.t(), logits[0]):
        with pytest.raises(ValueError, match="logits is"):
            kernels.sample(bad, [SampleRow(0, greedy)])
        with pytest.raises(ValueError, match="logits is"):
            raw(kernels, bad, [0], [0], [1])
    for row in (-1, 2):
        with pytest.raises(IndexError, match="row"):
            kernels.sample(logits, [SampleRow(row, greedy)])
        with pytest.raises(IndexError, match="row"):
            raw(kernels, logits, [row], [0], [1])
    with pytest.raises(IndexError, match="token"):
        raw(kernels, logits, [0], [8], [1])
    for named in (-1, 8):
        with pytest.raises(IndexError, match="named"):
            kernels.report(logits, [ReportedRow(0, 0, 1, [named])], "raw_logits")
    ids = np.array([8])
    values = np.ones(1, dtype=np.float32)
    for edits in (
        LogitEdits(allowed=ids),
        LogitEdits(banned=-ids),
        LogitEdits(bias_ids=ids, bias=values),
        LogitEdits(counted=ids, counts=values),
    ):
        with pytest.raises(IndexError, match="8; the vocabulary is 0 to 7"):
            kernels.sample(logits, [SampleRow(0, greedy, edits=edits)])
    for edits in (
        LogitEdits(banned=ids.astype(np.int32)),
        LogitEdits(bias_ids=ids, bias=values.astype(np.float64)),
        LogitEdits(counted=np.array([1, 2]), counts=values),
    ):
        with pytest.raises(ValueError, match="wanted"):
            kernels.sample(logits, [SampleRow(0, greedy, edits=edits)])


@each_isa
def test_masks(isa: str) -> None:
    """Words of all, of none and of some; the last one is cut by the vocabulary."""
    rng, kernels = new_rng(), new_sampler(isa)
    for vocab in (1, 31, 32, 33, 700, 50_257):
        for share in (0.0, 0.001, 0.5, 1.0):
            bits = rng.random(-(-vocab // 32) * 32) < share
            bits[rng.integers(vocab)] = True
            mask = np.packbits(bits, bitorder="little").view(np.int32)
            logits = rng.normal(0, 3, vocab).astype(np.float32)
            edits = LogitEdits(mask)
            some = np.flatnonzero(bits[:vocab])[:5]
            for each in (edits, LogitEdits(mask, allowed=some)):
                expected = logits.copy()
                each.apply(expected)
                row = SampleRow(0, SamplingParams(temperature=0.0), edits=each)
                assert kernels.sample(torch.from_numpy(logits)[None], [row]) == [expected.argmax()]


def test_a_mask_must_cover_the_vocabulary() -> None:
    row = SampleRow(0, SamplingParams(), edits=LogitEdits(np.zeros(1, dtype=np.int32)))
    with pytest.raises(IndexError, match="mask"):
        new_sampler().sample(torch.zeros(1, 33), [row])
