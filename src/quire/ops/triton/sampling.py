"""Launches of sampling: logits stay on the device, and only tokens come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.core.config import LogprobsMode
from quire.core.dtypes import HostArray
from quire.core.messages import TokenLogprobs
from quire.ops.reported import ReportedRow, with_named
from quire.ops.sample_row import LogitEdits, MaskWords, SampleRow
from quire.ops.torch_ops import sampling as plain
from quire.ops.torch_ops.arrays import array
from quire.ops.triton.kernels import sampling as kernels
from quire.ops.triton.launch import overlap, power_of_two

BLOCK = 4096
SEARCH = 512
"""Tokens that a search compares with 16 bounds at once."""
SORTED_ROWS = 16
"""Rows that are sorted at once, which takes three times their logits' memory."""


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """See `torch_ops.sampling.sample`."""
    if not rows:
        return []
    edits = [row.edits for row in rows if row.edits is not None]
    edited = logits
    if edits:
        numbers = [row.row for row in rows if row.edits is not None]
        edited = _edited(logits, numbers, edits)
    ints, floats = _sent(logits.device, *parameters(rows))
    tokens = choose(logits, edited, len(rows), (ints, floats), passes_for(rows))[0]
    return [int(token) for token in tokens.tolist()]


def parameters(rows: Sequence[SampleRow]) -> tuple[HostArray, HostArray]:
    """Return what `kernels.narrow` reads of the rows: int64 [rows, 6] and float64 [rows, 3]."""
    ints = np.zeros((len(rows), 6), np.int64)
    floats = np.zeros((len(rows), 3), np.float64)
    place = 0
    for i, row in enumerate(rows):
        given = row.params
        own = place if row.edits is not None else -1
        place += row.edits is not None
        key = row.key & 0xFFFFFFFF, row.key >> 32
        ints[i] = row.row, own, given.greedy, max(given.top_k, 0), *key
        least = math.log(given.min_p) if given.min_p > 0.0 else -math.inf
        floats[i] = given.temperature, least, given.top_p
    return ints, floats


class Passes(NamedTuple):
    """Whether tokens are drawn, and which searches they need."""

    draws: bool
    top_k: bool
    top_p: bool


def passes_for(rows: Sequence[SampleRow]) -> Passes:
    """Return what at least one of the rows needs."""
    drawn = [row.params for row in rows if not row.params.greedy]
    top_k = any(params.top_k > 0 for params in drawn)
    return Passes(bool(drawn), top_k, any(params.top_p < 1.0 for params in drawn))


def choose(
    logits: Tensor,
    edited: Tensor,
    count: int,
    given: tuple[Tensor, Tensor] | None,
    passes: Passes,
    kept: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return tokens and largest logits, float64 [2, count]; a token is -1 if that is not finite.

    Args:
        given: `parameters` of entries; None if they are the rows of `logits`, all of them greedy.
        kept: slot of each row, and the tokens of all slots, to which they are written.
    """
    vocab, device = logits.shape[1], logits.device
    block = min(BLOCK, power_of_two(vocab))
    parts = -(-vocab // block)
    width, early = power_of_two(parts), overlap(device)
    tops, places, drawn = (
        torch.empty((count, parts), dtype=dtype, device=device)
        for dtype in (torch.float32, torch.int32, torch.int32)
    )
    best = torch.empty((count, parts), dtype=torch.float64, device=device)
    ints, floats = given or (places, best)
    kernels.peaks[(count, parts)](
        logits, edited, ints, tops, places, vocab, logits.stride(0), given=given is not None,
        block=block, num_warps=8, enable_fp_fusion=False, **early,
    )  # fmt: skip
    if passes.draws:
        rows = logits, edited, ints, floats, tops
        shape: Any = vocab, logits.stride(0), parts
        k_lows, k_sums, mass = _search(rows, shape, block, None) if passes.top_k else _none(best)
        by_k = k_lows, k_sums
        lows, sums, mass = _search(rows, shape, block, by_k) if passes.top_p else _none(best)
        found = torch.empty((count, parts, 3), dtype=torch.float64, device=device)
        searched = (*rows, lows, sums, mass, *by_k, found)
        sizes: Any = {"block": block, "width": width, "num_warps": 8, "enable_fp_fusion": False}
        if passes.top_p:
            kernels.ties[(count, parts)](*searched, *shape, **sizes, **early)
        kernels.scores[(count, parts)](*searched, best, drawn, *shape, **sizes, **early)
    results = torch.empty((2, count), dtype=torch.float64, device=device)
    kernels.settle[(count,)](
        ints, tops, places, best, drawn, *(kept or (places, places)), results, parts,
        given=passes.draws, kept=kept is not None, width=width, num_warps=1,
        enable_fp_fusion=False, **early,
    )  # fmt: skip
    return results


def _none(unread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of a search that no row needs."""
    return unread.view(torch.int64), unread, unread


def _search(
    rows: tuple[Tensor, ...],
    shape: tuple[int, int, int],
    block: int,
    by_k: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the search of top_k, or of top_p behind it; return its last bounds and sums, and what
    all tokens weigh."""
    tops = rows[-1]
    count, parts = tops.shape
    lows = torch.empty((2, count), dtype=torch.int64, device=tops.device)
    sums = torch.empty((2, count, parts, 16), dtype=torch.float64, device=tops.device)
    mass = torch.empty((count, parts), dtype=torch.float64, device=tops.device)
    for turn in range(8):
        now, before = turn % 2, (turn + 1) % 2
        kernels.narrow[(count, parts)](
            *rows, lows[before], lows[now], sums[before], sums[now], mass, *(by_k or (lows, sums)),
            *shape, 28 - 4 * turn, weighted=by_k is not None, first=turn == 0, block=block,
            search=min(SEARCH, block), width=power_of_two(parts), num_warps=8,
            enable_fp_fusion=False, **overlap(tops.device),
        )  # fmt: skip
    return lows[1], sums[1], mass


def _edited(logits: Tensor, numbers: Sequence[int], edits: Sequence[LogitEdits]) -> Tensor:
    """Return copies of these rows after their edits."""
    vocab, device = logits.shape[1], logits.device
    _check(edits, vocab)
    out = torch.empty((len(edits), vocab), dtype=torch.float32, device=device)
    words = np.zeros((len(edits), -(-vocab // 32)), np.int32)
    has_words = np.zeros(len(edits), np.int32)
    for i, edit in enumerate(edits):
        if edit.mask is not None or edit.allowed is not None or len(edit.banned):
            words[i], has_words[i] = _words(edit, words.shape[1]), 1
    block = min(BLOCK, power_of_two(vocab))
    kernels.mask[(len(edits), -(-vocab // block))](
        logits, *_sent(device, np.array(numbers), words, has_words), out, vocab,
        logits.stride(0), words.shape[1], block=block, enable_fp_fusion=False,
    )  # fmt: skip
    if any(len(edit.bias_ids) for edit in edits):
        starts, ids, values = _joined([(edit.bias_ids, edit.bias) for edit in edits])
        kernels.bias[(len(edits),)](
            out, *_sent(device, starts, ids, values), vocab, block=256, enable_fp_fusion=False
        )
    if any(len(edit.counted) for edit in edits):
        starts, ids, counts = _joined([(edit.counted, edit.counts) for edit in edits])
        factors = [(edit.repetition, edit.frequency, edit.presence) for edit in edits]
        kernels.penalize[(len(edits),)](
            out, *_sent(device, starts, ids, counts, np.array(factors, np.float32)), vocab,
            block=256, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _check(edits: Sequence[LogitEdits], vocab: int) -> None:
    for edit in edits:
        for ids in (edit.allowed, edit.banned, edit.bias_ids, edit.counted):
            if ids is not None and len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
                raise IndexError(f"token {ids.max()} is outside of the vocabulary of {vocab}")


def _words(edit: LogitEdits, count: int) -> MaskWords:
    """Return the tokens that the edit leaves, one bit each."""
    words = np.full(count, -1, np.int32)
    if edit.mask is not None:
        words[:] = edit.mask[:count]
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    if edit.allowed is not None:
        left = np.zeros_like(bits)
        left[edit.allowed] = bits[edit.allowed]
        bits = left
    bits[edit.banned] = 0
    return np.packbits(bits, bitorder="little").view(np.int32)


def _joined(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Return where each row's part begins, int32 [rows + 1], then all ids and all values."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in parts)]).astype(np.int32)
    ids, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, ids.astype(np.int64), values.astype(np.float32)


def _sent(device: torch.device, *values: Any) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in values]


def report(logits: Tensor, rows: Sequence[ReportedRow], mode: LogprobsMode) -> list[TokenLogprobs]:
    """See `torch_ops.sampling.report`, which has the other modes."""
    vocab, device = logits.shape[1], logits.device
    if mode != "raw_logprobs":
        return plain.report(logits, rows, mode)
    if not len(rows):
        return []
    numbers, chosen = (
        _sent(device, np.array([getattr(row, name) for row in rows], np.int64))[0]
        for name in ("row", "token")
    )
    peaks, own = (torch.empty(len(rows), dtype=torch.float32, device=device) for _ in range(2))
    sums = torch.empty(len(rows), dtype=torch.float64, device=device)
    ranks = torch.empty(len(rows), dtype=torch.int64, device=device)
    kernels.totals[(len(rows),)](
        logits, numbers, chosen, peaks, sums, own, ranks, vocab, logits.stride(0),
        block=min(BLOCK, power_of_two(vocab)), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    log_totals = peaks.double().cpu().numpy() + np.log(sums.cpu().numpy())
    listed = _likeliest(logits, numbers, min(max(row.count for row in rows), vocab))
    found = []
    for i, (row, value, rank) in enumerate(zip(rows, own.tolist(), ranks.tolist(), strict=True)):
        ids, values = (part[i, : max(row.count, 0)] for part in listed)
        distances = (np.array([value, *values]) - log_totals[i]).tolist()
        entry = TokenLogprobs([row.token, *ids.tolist()], distances, rank)
        found.append(with_named(entry, array(logits[row.row]), row.named) if row.named else entry)
    return found


def _likeliest(logits: Tensor, rows: Tensor, count: int) -> tuple[Any, Any]:
    """Return ids and logits of each row's `count` likeliest tokens, ties by id, on the host."""
    if count <= 0:
        return np.zeros((len(rows), 0), np.int64), np.zeros((len(rows), 0), np.float32)
    ids, values = [], []
    for some in rows.split(SORTED_ROWS):
        ordered, order = torch.sort(logits[some], dim=1, descending=True, stable=True)
        ids.append(order[:, :count].cpu().numpy())
        values.append(ordered[:, :count].cpu().numpy())
    return np.concatenate(ids), np.concatenate(values)
