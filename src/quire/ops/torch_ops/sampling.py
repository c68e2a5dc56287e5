"""Sampling from logits in torch's memory: each row by numpy (see `ops.sample_row`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from quire.core.config import LogprobsMode
from quire.core.messages import TokenLogprobs
from quire.ops.filters import FloatRow
from quire.ops.reported import ReportedRow, report_row
from quire.ops.sample_row import SampleRow, TokenIds, sample_row
from quire.ops.torch_ops.arrays import array


def argmax(logits: Tensor) -> tuple[TokenIds, FloatRow]:
    """Return the first index of each row's largest logit (int64 [rows]), and that logit.

    Both are new arrays in host memory: tensors would cost more than the search, in a process whose
    caches a step has just filled with weights. A largest of NaN or an infinity marks a row that is
    sick; its index has no meaning.
    """
    peaks, tokens = logits.max(dim=-1)  # passes NaN on
    return tokens.cpu().numpy(), peaks.cpu().numpy()


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Return a token for each of `rows` of logits, float32 [n, vocab], which stay unchanged.

    Returns:
        tokens; -1 where the row's largest logit, after its edits, is not finite.

    Raises:
        IndexError: an edit names a token outside the vocabulary.
    """
    matrix = logits.cpu().numpy()
    return [sample_row(matrix[row.row], row) for row in rows]


def report(logits: Tensor, rows: Sequence[ReportedRow], mode: LogprobsMode) -> list[TokenLogprobs]:
    """Return what answers report of rows of logits, float32 [n, vocab].

    Ties rank equal, and are listed by id; no more are listed than there are. The largest logit of
    each row is finite.
    """
    return [report_row(array(logits[row.row]), row, mode) for row in rows]
