"""Sampling and log-probabilities on the native kernels, as `torch_ops.sampling` defines them.

A sum of float64 weights that decides which tokens top_p keeps is rounded otherwise than in numpy.
So a token may differ where the mass before it lies that close to top_p. Everything else is equal to
the bit, the draw too. Weights and sums are the same on every ISA.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire import _native
from quire.core.config import LogprobsMode
from quire.core.dtypes import HostArray
from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow
from quire.ops.native.checks import matrix
from quire.ops.native.kernels import Kernels, Pool
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import LogitEdits, SampleRow, TokenIds


class SamplingKernels:
    """The sampler of one instruction set, on one pool of threads: a row is one thread's.

    Raises ValueError for logits that are not dense rows of float32, IndexError for a
    row or token that is not there.
    """

    def __init__(self, kernels: Kernels, pool: Pool) -> None:
        self.native = _native.Sampler(kernels, pool)

    def sample(self, logits: HostArray, rows: Sequence[SampleRow]) -> list[int]:
        """Return one token per row; -1 if the row's largest logit is not finite after its edits."""
        given, vocab = matrix("logits", logits), logits.shape[1]
        tokens = np.empty(len(rows), dtype=np.int64)
        self.native.sample(given, [_native_row(row, vocab) for row in rows], tokens.ctypes.data)
        return tokens.tolist()

    def report(
        self, logits: HostArray, rows: Sequence[ReportedRow], mode: LogprobsMode
    ) -> list[TokenLogprobs]:
        """Return what `ops.reported.report_row` returns for each row."""
        given, vocab = matrix("logits", logits), logits.shape[1]
        k = min(max((row.count for row in rows), default=0), vocab)
        named = max((len(row.named) for row in rows), default=0)
        where, which = (
            np.array([getattr(row, name) for row in rows], dtype=np.int64)
            for name in ("row", "token")
        )
        ids = np.zeros((len(rows), 1 + k + named), dtype=np.int64)
        for row, listed in zip(rows, ids, strict=True):
            listed[1 + k : 1 + k + len(row.named)] = row.named
        values, ranks, sampled = np.empty(ids.shape), np.empty_like(where), []
        if mode in ("processed_logprobs", "processed_logits"):
            greedy = SamplingParams(temperature=0.0)
            sampled = [
                _native_row(row.sampled or SampleRow(row.row, greedy), vocab) for row in rows
            ]
        self.native.logprobs(
            given, _native.Indices(where.ctypes.data, len(where)),
            _native.Indices(which.ctypes.data, len(which)), k, ids.ctypes.data,
            values.ctypes.data, ranks.ctypes.data, sampled, named,
            mode in ("raw_logits", "processed_logits"),
        )  # fmt: skip
        return [
            _entry(row, k, *each)
            for row, *each in zip(rows, ids, values, ranks.tolist(), strict=True)
        ]


def _entry(
    row: ReportedRow, k: int, ids: NDArray[np.int64], values: NDArray[np.float64], rank: int
) -> TokenLogprobs:
    """Return a row's entry; other rows may list more tokens, which are not converted here."""
    listed, named = 1 + min(row.count, k), slice(1 + k, 1 + k + len(row.named))
    entry = TokenLogprobs(ids[:listed].tolist(), values[:listed].tolist(), rank, len(row.named))
    if row.named:
        entry.token_ids.extend(ids[named].tolist())
        entry.logprobs.extend(values[named].tolist())
    return entry


def _native_row(row: SampleRow, vocab: int) -> _native.SampleRow:
    """Return `row` for the kernels; its arrays must outlive it."""
    p = row.params
    native = _native.SampleRow(row.row, p.temperature, p.top_k, p.top_p, p.min_p, 0.0)
    native.key(row.key)
    if row.edits is not None:
        _edit(native, row.edits, vocab)
    return native


def _edit(native: _native.SampleRow, edits: LogitEdits, vocab: int) -> None:
    if edits.mask is not None:
        if edits.mask.dtype != np.int32 or edits.mask.ndim != 1 or edits.mask.strides != (4,):
            raise ValueError(f"a mask is {edits.mask.dtype} {edits.mask.shape}; wanted int32 [n]")
        native.mask(edits.mask.ctypes.data, len(edits.mask), vocab)
    if edits.allowed is not None:
        native.allow(*_ids(edits.allowed), vocab)
    if len(edits.banned):
        native.ban(*_ids(edits.banned), vocab)
    if len(edits.bias_ids):
        native.bias(*_ids(edits.bias_ids), vocab, _values(edits.bias, edits.bias_ids))
    if len(edits.counted):
        counts = _values(edits.counts, edits.counted)
        native.penalize(
            *_ids(edits.counted), vocab, counts, edits.repetition, edits.frequency, edits.presence
        )


def _ids(ids: TokenIds) -> tuple[int, int]:
    """Return address and size."""
    if ids.dtype != np.int64 or ids.ndim != 1 or not ids.flags.c_contiguous:
        raise ValueError(f"token ids are {ids.dtype} {ids.shape}; wanted contiguous int64 [n]")
    return ids.ctypes.data, len(ids)


def _values(values: FloatRow, ids: TokenIds) -> int:
    """Return the address of the values, one float per id."""
    if values.dtype != np.float32 or values.shape != ids.shape or not values.flags.c_contiguous:
        raise ValueError(f"values are {values.dtype} {values.shape}; wanted float32 {ids.shape}")
    return values.ctypes.data
