"""Sampling from logits in torch's memory: each row by numpy (see `ops.sample_row`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from quire.core.messages import TokenLogprobs
from quire.ops.filters import FloatRow
from quire.ops.sample_row import SampleRow, TokenIds, row_logprobs, sample_row


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


def logprobs(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Of `tokens[i]` and the `counts[i]` likeliest under softmax(logits[rows[i]]), in float64.

    Ties rank equal, and are listed by id; no more are listed than there are.

    Args:
        logits: float32 [n, vocab]; the largest of each row is finite.
    """
    matrix = logits.cpu().numpy()
    return [
        row_logprobs(matrix[row], *rest) for row, *rest in zip(rows, tokens, counts, strict=True)
    ]
