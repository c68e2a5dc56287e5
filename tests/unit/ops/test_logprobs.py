"""Log-probabilities, of every provider, against torch's float64 log_softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow
from quire.ops.interface import Ops
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import SampleRow


def token_logprobs(ops: Ops, logits: FloatRow, token: int, k: int) -> TokenLogprobs:
    """Of a row between two others."""
    rows = torch.from_numpy(np.stack([logits + 1, logits, logits[::-1]]))
    other, entry = ops.report(
        rows, [ReportedRow(2, 0, 3), ReportedRow(1, token, k)], "raw_logprobs"
    )
    assert len(other.token_ids) == 1 + min(3, len(logits))
    return entry


@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_values_and_order_are_log_softmax(ops: Ops, k: int) -> None:
    logits = np.random.default_rng(0).normal(0, 4, 3000).astype(np.float32)
    expected = torch.from_numpy(logits).double().log_softmax(-1)
    entry = token_logprobs(ops, logits, 123, k)
    assert entry.token_ids == [123, *expected.topk(k).indices.tolist()]
    np.testing.assert_allclose(entry.logprobs, expected[entry.token_ids].numpy(), rtol=1e-12)
    assert entry.rank == 1 + int((expected > expected[123]).sum())


def test_ties_share_a_rank_and_are_listed_by_id(ops: Ops) -> None:
    logits = np.array([0, 2, 2, 1, 2], dtype=np.float32)
    entry = token_logprobs(ops, logits, 4, 2)
    assert entry.token_ids == [4, 1, 2]
    assert entry.rank == 1
    assert token_logprobs(ops, logits, 3, 2).rank == 4


def test_ruled_out_tokens_and_a_vocabulary_smaller_than_k(ops: Ops) -> None:
    logits = np.array([0.0, -np.inf], dtype=np.float32)
    entry = token_logprobs(ops, logits, 1, 20)
    assert entry.token_ids == [1, 0, 1]
    assert entry.logprobs == [-math.inf, 0.0, -math.inf]
    assert entry.rank == 2


@pytest.mark.parametrize("temperature", [1e-5, 1e-307, 5e-324])
def test_no_temperature_is_too_low_for_processed_values(ops: Ops, temperature: float) -> None:
    logits = np.array([-3e38, 0, 7, 3e38, 1], dtype=np.float32)
    sampled = SampleRow(0, SamplingParams(temperature=temperature), 1)
    wanted = ReportedRow(0, 3, 2, [0], sampled)
    [entry] = ops.report(torch.from_numpy(logits)[None], [wanted], "processed_logprobs")
    assert entry.token_ids == [3, 3, 2, 0]
    assert entry.logprobs[0] == 0.0 > entry.logprobs[2]
    assert np.isfinite(entry.logprobs).all()
