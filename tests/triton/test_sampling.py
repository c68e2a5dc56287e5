"""Sampling on the device: the tokens of `ops.sample_row`, drawn with the same keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.core.sampling_params import SamplingParams
from quire.ops.reported import ReportedRow, report_row
from quire.ops.sample_row import LogitEdits, SampleRow, sample_row
from quire.ops.triton import sampling
from quire.ops.triton.last_tokens import TritonLastTokens
from tests.fake_device import LAZY, FakeDevice
from tests.triton.on_fake_device import launching

VOCAB = 200
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "min_p": 0.05}, {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.5, "min_p": 0.01},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH", 128)


def logits(rows: int, seed: int) -> Tensor:
    """Rows with ties everywhere, both zeros among them, and tokens that are ruled out."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_normal((rows, VOCAB)) * 8) / 4
    values[values == 0.25] = -0.0
    values[:, 7::31] = -np.inf
    return torch.from_numpy(values.astype(np.float32))


def edits(seed: int) -> LogitEdits:
    rng = np.random.default_rng(seed)
    some = [rng.permutation(VOCAB).astype(np.int64) for _ in range(4)]
    words = rng.integers(-(2**31), 2**31, -(-VOCAB // 32), dtype=np.int64).astype(np.int32)
    return LogitEdits(
        mask=words if seed % 2 else None,
        allowed=some[0][:150] if seed % 3 else None,
        banned=some[1][:9],
        bias_ids=some[2][:3],
        bias=rng.standard_normal(3).astype(np.float32),
        counted=some[3][:50],
        counts=rng.integers(0, 3, 50).astype(np.float32),
        repetition=1.3,
        frequency=0.31,
        presence=0.17,
    )


def test_tokens_are_those_of_the_reference() -> None:
    """Every filter and edits, in one batch and in another; rows in any order."""
    rng, table = np.random.default_rng(3), logits(4, 1)
    rows = [
        SampleRow(int(rng.integers(4)), SamplingParams(**params), int(rng.integers(2**63)) * 2 + 1,
                  edits(i) if i != 1 else None)
        for i, params in enumerate(PARAMS)
    ]  # fmt: skip
    matrix = table.numpy()
    before = matrix.copy()
    expected = [sample_row(matrix[row.row], row) for row in rows]
    assert sampling.sample(table, rows) == expected
    assert sampling.sample(table, rows[4:2:-1]) == expected[4:2:-1]
    assert np.array_equal(matrix, before)
    assert len(set(expected)) > 3


def test_tokens_are_chosen_where_the_next_step_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy rows, drawn ones and a sick one, whose parts meet in ties."""
    table = logits(5, 6)
    table[2, 3] = torch.nan
    table[3] = 2.0
    rows = [SampleRow(i, SamplingParams(**PARAMS[n]), 77 * i) for i, n in ((1, 5), (3, 1))]
    expected = table.numpy().argmax(axis=1).tolist()
    for row in rows:
        expected[row.row] = sample_row(table[row.row].numpy(), row)
    expected[2] = -1  # and any token that exists for the next step
    device = FakeDevice()
    with launching(device, monkeypatch, run=True), device.watching(), torch.inference_mode():
        last = TritonLastTokens(device, 6)
        slots = torch.arange(5, 0, -1).to(LAZY)
        chosen = last.choose(table.to(LAZY), slots, rows)
        few = last.choose(table[:1].to(LAZY), slots[4:] * 0, [])
        ids = torch.tensor([~1, 5, ~5, ~0, ~3]).to(LAZY)
        last.fill(ids)
        tokens, largest = chosen.read()
        assert few.read()[0].tolist() == expected[:1]
        assert tokens.tolist() == expected
        assert ids.tolist() == [expected[4], 5, expected[0], expected[0], 0]
    peaks = table.max(dim=1)[0].numpy()
    assert np.array_equal(largest, peaks, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS[1:], ids=str)
def test_many_draws(params: dict[str, Any]) -> None:
    table, given = logits(1, 5), SamplingParams(**params)
    rows = [SampleRow(0, given, key * 0x9E3779B97F4A7C15 % 2**64) for key in range(15)]
    matrix = table.numpy()
    assert sampling.sample(table, rows) == [sample_row(matrix[0], row) for row in rows]


def test_sick_rows_have_no_token() -> None:
    table = logits(4, 2)
    table[0, 3], table[1, 150] = torch.nan, torch.inf
    table[2] = -torch.inf
    params = SamplingParams(temperature=1.0)
    none = LogitEdits(allowed=np.array([7]))  # ruled out by the logits
    rows = [SampleRow(i, params, 5) for i in range(4)] + [SampleRow(3, params, 5, none)]
    matrix = table.numpy()
    expected = [-1, -1, -1, sample_row(matrix[3], rows[3]), -1]
    assert sampling.sample(table, rows) == expected
    wrong = LogitEdits(banned=np.array([VOCAB]))
    with pytest.raises(IndexError, match="token 200"):
        sampling.sample(table, [SampleRow(3, params, 5, wrong)])


def test_log_probabilities_are_those_of_the_reference() -> None:
    """Ties are listed by id; sums in another order differ in their last bits."""
    table = logits(3, 4)
    rows, tokens, counts = [2, 0, 2], [11, 0, 7], [0, 4, 300]
    wanted = [ReportedRow(*each) for each in zip(rows, tokens, counts, strict=True)]
    wanted[1].named = [5, 0]
    found = sampling.report(table, wanted, "raw_logprobs")
    for one, row in zip(found, wanted, strict=True):
        expected = report_row(table[row.row].numpy(), row, "raw_logprobs")
        assert (one.token_ids, one.rank) == (expected.token_ids, expected.rank)
        np.testing.assert_allclose(one.logprobs, expected.logprobs, rtol=1e-13, atol=1e-13)
    assert sampling.report(table, [], "raw_logprobs") == []
