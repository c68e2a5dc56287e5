"""Seeds of requests that have none."""

from __future__ import annotations

import itertools
from hashlib import blake2b

from quire.core.sampling_params import SamplingParams


class Seeds:
    """Draws seeds from the engine's seed and the number of seeds drawn before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._num_drawn = itertools.count()

    def draw(self, params: SamplingParams) -> int | None:
        """Return a request's seed, drawn if it has none; None if it is greedy.

        Requests draw in the order in which they arrive, because texts may overtake each other.
        """
        if params.seed is not None or params.greedy:
            return params.seed
        return derive_seed(self._seed, next(self._num_drawn))


def derive_seed(seed: int, index: int) -> int:
    """Return a seed in [0, 2⁶³) that depends only on both numbers."""
    digest = blake2b(b"%d:%d" % (seed, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
