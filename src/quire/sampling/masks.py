"""Tokens ruled out or favoured by name: allowed_token_ids, bad_words, min_tokens, logit_bias."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

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
        self._allowed = _allowed(params, vocab_size)
        self._bias_ids = _checked("logit_bias", bias, vocab_size)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._min_tokens = params.min_tokens
        self._stop_ids = _checked("stop_token_ids", stop_token_ids, vocab_size)
        self._bad_words = BadWords(_bad_words(params), vocab_size)

    @staticmethod
    def needed(params: SamplingParams, num_output_tokens: int) -> bool:
        """Whether `add_to` would add anything, now or later."""
        return (
            params.allowed_token_ids is not None
            or params.allowed_tokens is not None
            or bool(params.bad_words or params.bad_words_token_ids)
            or bool(params.logit_bias)
            or num_output_tokens < params.min_tokens
        )

    def add_to(self, edits: LogitEdits, output: TokenRow) -> None:
        """Note what is to be done now, after the tokens generated so far, [n]."""
        edits.allowed = self._allowed
        edits.bias_ids, edits.bias = self._bias_ids, self._bias
        banned = [self._bad_words.single]
        if ended := self._bad_words.completed_after(output):
            banned.append(np.array(sorted(ended), dtype=np.int64))
        if len(output) < self._min_tokens:
            banned.append(self._stop_ids)
        edits.banned = np.concatenate(banned) if len(banned) > 1 else banned[0]


class BadWords:
    """Token sequences that must not be generated, indexed by all their tokens but the last.

    A step looks up one key for each length of the words whose last token but one was just
    generated. So its cost does not grow with the number of words.

    Args:
        words: none of them empty.

    Attributes:
        single: the words of one token, int64.

    Raises:
        InvalidRequestError: a token id is outside the vocabulary.
    """

    def __init__(self, words: list[list[int]], vocab_size: int) -> None:
        _checked("bad_words", chain.from_iterable(words), vocab_size)
        self.single = np.array(sorted({w[0] for w in words if len(w) == 1}), dtype=np.int64)
        self._lasts: dict[tuple[int, ...], set[int]] = {}
        lengths: dict[int, set[int]] = {}
        for word in words:
            if len(word) > 1:
                *begun, last = word
                self._lasts.setdefault(tuple(begun), set()).add(last)
                lengths.setdefault(begun[-1], set()).add(len(begun))
        self._lengths = {token: sorted(found) for token, found in lengths.items()}

    def completed_after(self, output: TokenRow) -> set[int]:
        """Tokens that would complete a word behind `output` [n]."""
        lengths = self._lengths.get(int(output[-1]), ()) if len(output) else ()
        if not lengths:
            return set()
        tail = output[-lengths[-1] :].tolist()
        keys = (tuple(tail[-length:]) for length in lengths)
        return set().union(*(self._lasts.get(key, ()) for key in keys))


def _allowed(params: SamplingParams, vocab_size: int) -> NDArray[np.int64] | None:
    """The tokens that are allowed; None is all."""
    if params.allowed_tokens is not None:
        bits = np.frombuffer(params.allowed_tokens, dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if params.allowed_token_ids is not None:
        return _checked("allowed_token_ids", params.allowed_token_ids, vocab_size)
    return None


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
