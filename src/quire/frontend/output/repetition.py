"""Finds outputs that repeat themselves."""

from __future__ import annotations

import numpy as np

from quire.core.sampling_params import RepetitionDetectionParams


class RepetitionDetector:
    """Follows one output, token by token; each takes a few microseconds, whatever the output.

    A pattern of k tokens comes c times if each of the last k · (c - 1) tokens equals the one k
    before it. So one counter per k, and the last tokens, are enough.
    """

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._least, self._most = max(params.min_pattern_size, 1), params.max_pattern_size
        sizes = np.arange(self._least, self._most + 1)
        self._needed = sizes * (params.min_count - 1)
        self._equal = np.zeros_like(sizes)
        """By size of a pattern: how many tokens equal the one so many before, up to the last."""
        self._last = np.full(2 * self._most, -1)
        """Tokens from index `_begin` on, the latest first."""
        self._begin = self._most

    def repeats(self, token: int) -> bool:
        """Return whether the output ends with a repeated pattern, now that `token` has come."""
        before = self._last[self._begin + self._least - 1 : self._begin + self._most]
        self._equal += 1
        self._equal *= before == token
        if self._begin == 0:
            self._last[self._most :] = self._last[: self._most]
            self._begin = self._most
        self._begin -= 1
        self._last[self._begin] = token
        return bool((self._equal >= self._needed).any())
