"""Finds outputs that repeat themselves."""

from __future__ import annotations

from collections import defaultdict, deque

from quire.core.sampling_params import RepetitionDetectionParams


class RepetitionDetector:
    """Follows one output, token by token.

    A pattern of k tokens comes c times if each of the last k · (c - 1) tokens equals the one k
    before it. So one counter per k is enough, however long the output is.
    """

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._least = max(params.min_pattern_size, 1)
        self._most = params.max_pattern_size
        self._more = params.min_count - 1
        self._places: defaultdict[int, deque[int]] = defaultdict(deque)
        """By token: where it is among the last ones, as far as a pattern reaches."""
        self._equal: dict[int, int] = {}
        """By size of a pattern: how many tokens equal the one so many before, up to the last."""
        self._count = 0

    def repeats(self, token: int) -> bool:
        """Return whether the output ends with a repeated pattern, now that `token` has come."""
        at, places = self._count, self._places[token]
        self._count += 1
        while places and at - places[0] > self._most:
            places.popleft()
        sizes = [at - place for place in places if at - place >= self._least]
        self._equal = {size: self._equal.get(size, 0) + 1 for size in sizes}
        places.append(at)
        return any(equal >= size * self._more for size, equal in self._equal.items())
