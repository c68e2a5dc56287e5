"""Tokens ruled out or favoured by name: allowed_token_ids, bad_words, min_tokens, logit_bias."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.ops.sampling import LogitEdits

TokenRow = NDArray[np.int32]


class Masks:
    """One sequence's masks and biases, with their token ids checked once.

    Args:
        stop_token_ids: the tokens that `min_tokens` holds back: end of sequence and
            the request's own stop tokens.

    Raises:
        InvalidRequestError: a token id is outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, stop_token_ids: Iterable[int], vocab_size: int
    ) -> None:
        bias = params.logit_bias or {}
        self._allowed = (
            None
            if params.allowed_token_ids is None
            else _checked("allowed_token_ids", params.allowed_token_ids, vocab_size)
        )
        self._bias_ids = _checked("logit_bias", bias, vocab_size)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._min_tokens = params.min_tokens
        self._stop_ids = _checked("stop_token_ids", stop_token_ids, vocab_size)
        words = [_checked("bad_words", word, vocab_size) for word in _bad_words(params)]
        self._bad_tokens = np.array([w[0] for w in words if len(w) == 1], dtype=np.int64)
        self._bad_sequences = [w for w in words if len(w) > 1]

    @staticmethod
    def needed(params: SamplingParams, num_output_tokens: int) -> bool:
        """Whether `add_to` would add anything, now or later."""
        return (
            params.allowed_token_ids is not None
            or bool(params.bad_words or params.bad_words_token_ids)
            or bool(params.logit_bias)
            or num_output_tokens < params.min_tokens
        )

    def add_to(self, edits: LogitEdits, output: TokenRow) -> None:
        """Note what is to be done now, after the tokens generated so far, [n]."""
        edits.allowed = self._allowed
        edits.bias_ids, edits.bias = self._bias_ids, self._bias
        ended = [word[-1] for word in self._bad_sequences if _ends_with(output, word[:-1])]
        banned = [self._bad_tokens, np.array(ended, dtype=np.int64)]
        if len(output) < self._min_tokens:
            banned.append(self._stop_ids)
        edits.banned = np.concatenate(banned)


def _ends_with(output: TokenRow, begun: NDArray[np.int64]) -> bool:
    return len(output) >= len(begun) and np.array_equal(output[len(output) - len(begun) :], begun)


def _bad_words(params: SamplingParams) -> list[list[int]]:
    """The token sequences of `bad_words`; without them the words would pass unseen."""
    if params.bad_words and params.bad_words_token_ids is None:
        raise InvalidRequestError("bad_words has not been tokenized.", param="bad_words")
    return [word for word in params.bad_words_token_ids or [] if word]


def _checked(name: str, ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    """`ids` as an array; a negative id would silently count from the vocabulary's end."""
    array = np.fromiter(ids, dtype=np.int64)
    wrong = array[(array < 0) | (array >= vocab_size)]
    if wrong.size:
        raise InvalidRequestError(
            f"{name} has token {wrong[0]}; the vocabulary is 0 to {vocab_size - 1}.", param=name
        )
    return array
