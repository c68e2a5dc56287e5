"""Masks and biases from allowed_token_ids, bad_words, min_tokens and logit_bias."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.ops.sample_row import LogitEdits

TokenRow = NDArray[np.int32]


class Masks:
    """One sequence's masks and biases; their token ids are checked once.

    Args:
        stop_token_ids: tokens that `min_tokens` rules out: end-of-sequence tokens and the
            request's own stop tokens.

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
        """Return whether `add_to` has an effect, now or later."""
        return (
            params.allowed_token_ids is not None
            or params.allowed_tokens is not None
            or bool(params.bad_words or params.bad_words_token_ids)
            or bool(params.logit_bias)
            or num_output_tokens < params.min_tokens
        )

    def add_to(self, edits: LogitEdits, output: TokenRow) -> None:
        """Add the masks and biases for the token after `output` [n]."""
        edits.allowed = self._allowed
        edits.bias_ids, edits.bias = self._bias_ids, self._bias
        banned = [self._bad_words.single]
        if ended := self._bad_words.completed_after(output):
            banned.append(np.array([*ended], dtype=np.int64))
        if len(output) < self._min_tokens:
            banned.append(self._stop_ids)
        edits.banned = np.concatenate(banned) if len(banned) > 1 else banned[0]


class BadWords:
    """Token sequences that must not be generated, indexed by all their tokens but the last.

    A step looks up one key per length of the words whose second-to-last token was just generated.
    So its cost does not grow with the number of words.

    Args:
        words: no empty ones.

    Attributes:
        single: words of one token, int64.

    Raises:
        InvalidRequestError: a token id is outside the vocabulary.
    """

    def __init__(self, words: list[list[int]], vocab_size: int) -> None:
        _checked("bad_words", chain.from_iterable(words), vocab_size)
        self.single = np.array([w[0] for w in words if len(w) == 1], dtype=np.int64)
        self._lasts: dict[tuple[int, ...], set[int]] = {}
        lengths: dict[int, set[int]] = {}
        for word in words:
            if len(word) > 1:
                *begun, last = word
                self._lasts.setdefault(tuple(begun), set()).add(last)
                lengths.setdefault(begun[-1], set()).add(len(begun))
        self._lengths = {token: sorted(found) for token, found in lengths.items()}

    def completed_after(self, output: TokenRow) -> set[int]:
        """Return the tokens that would complete a word after `output` [n]."""
        lengths = self._lengths.get(int(output[-1]), ()) if len(output) else ()
        if not lengths:
            return set()
        tail = output[-lengths[-1] :].tolist()
        keys = (tuple(tail[-length:]) for length in lengths)
        return set().union(*(self._lasts.get(key, ()) for key in keys))


def _allowed(params: SamplingParams, vocab_size: int) -> NDArray[np.int64] | None:
    """Return the allowed tokens; None means all."""
    if params.allowed_tokens is not None:
        bits = np.frombuffer(params.allowed_tokens, dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if params.allowed_token_ids is not None:
        return _checked("allowed_token_ids", params.allowed_token_ids, vocab_size)
    return None


def _bad_words(params: SamplingParams) -> list[list[int]]:
    """Return the token sequences of `bad_words`.

    Raises:
        InvalidRequestError: the words were not tokenized, so they would have no effect.
    """
    if params.bad_words and params.bad_words_token_ids is None:
        raise InvalidRequestError("bad_words has not been tokenized.", param="bad_words")
    return [word for word in params.bad_words_token_ids or [] if word]


def _checked(name: str, ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    """Return `ids` as an array; raise for ids outside the vocabulary, also negative ones."""
    array = np.fromiter(ids, dtype=np.int64)
    wrong = array[(array < 0) | (array >= vocab_size)]
    if wrong.size:
        raise InvalidRequestError(
            f"{name} has token {wrong[0]}; the vocabulary is 0 to {vocab_size - 1}.", param=name
        )
    return array
