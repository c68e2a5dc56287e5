"""Sizes the chunks of prompts so that all pipeline stages compute for as long.

The last stage starts when the first chunk has passed all others, and the first stage is idle while
the last chunk does. n chunks that take t seconds on each of s stages take (n + s - 1) · t. Small
chunks therefore leave fewer idle seconds. But each one reads all weights again, and a long chunk
behind short ones makes every stage wait. So the number of chunks is the best one, by the cost
model, and chunks become shorter the more tokens they attend to: each takes the same time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from quire.core.cost import StepCost

LEAST = 64
"""Tokens of the smallest chunk: below it, kernels lose more than the stages wait."""
SLACK = 1.02
"""The largest chunk that is worse than the best one by no more than this factor is chosen: a
machine may lose more with small chunks than the cost model predicts."""
TILE = 16
"""Chunks are a multiple of it."""


class LevelChunks:
    """Chooses the number of tokens of steps that compute prompts only.

    Args:
        cost: predicts a step's seconds; only proportions matter.
        stages: how many steps are computed at a time.
        max_tokens: the most tokens of a step.
    """

    def __init__(self, cost: StepCost, stages: int, max_tokens: int) -> None:
        self._cost = cost
        self._stages = stages
        self._max_tokens = max_tokens

    def tokens(self, length: int, computed: int, prompts: int = 1) -> int:
        """Return the tokens of the next step.

        Args:
            length: tokens of the prompt whose chunk it is.
            computed: how many of them are computed.
            prompts: how many prompts of about this length follow one another, including this one.
        """
        if self._max_tokens <= LEAST:
            return self._max_tokens
        middle = length // 2

        def total(chunk: int) -> float:
            steps = -(-length * prompts // chunk) + self._stages - 1
            return steps * self._seconds(chunk, middle)

        totals = {size: total(size) for size in self._sizes()}
        limit = SLACK * min(totals.values())
        level = self._seconds(max(size for size in totals if totals[size] <= limit), middle)
        if self._seconds(self._max_tokens, computed) <= level:
            return self._max_tokens
        tiles = range(LEAST, self._max_tokens, TILE)
        fits = bisect_right(tiles, level, key=lambda chunk: self._seconds(chunk, computed))
        return tiles[max(fits, 1) - 1]

    def _sizes(self) -> Iterator[int]:
        size = self._max_tokens
        yield size
        while (size := size // 2) >= LEAST:
            yield size

    def _seconds(self, chunk: int, behind: int) -> float:
        pairs = chunk * behind + chunk * (chunk + 1) // 2
        return self._cost.seconds(chunk, 1, behind + chunk, pairs)
