"""Random prompts and arrival times, repeatable by their seeds."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import ConfigError
from quire.system.records import dataclass

_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work number night
point home water room mother area money story fact month lot right study book eye job word
"""


def token_prompts(count: int, length: int, vocab_size: int, seed: list[int]) -> list[list[int]]:
    """Return `count` lists of `length` token ids, uniform in [0, vocab_size).

    Args:
        seed: numbers that together name the stream, such as `[--seed, repetition]`. Repetitions
            differ, so that no prompt finds another's prefix in the cache.
    """
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = rng.integers(0, vocab_size, size=(count, length)).tolist()
    return prompts


def text_prompts(count: int, length: int, seed: list[int]) -> list[str]:
    """Return `count` texts of `length` common English words, each about one token."""
    rng = np.random.default_rng(seed)
    words = _WORDS.split()
    picks = rng.integers(0, len(words), size=(count, length))
    return [" ".join(words[i] for i in row) for row in picks]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes from the first request to the last."""

    strategy: Literal["linear", "exponential"]
    start: float
    """Requests per second."""
    end: float

    def rates(self, count: int) -> NDArray[np.float64]:
        """Return each request's rate, in equal steps or factors: float64 [count]."""
        if self.strategy == "linear":
            return np.linspace(self.start, self.end, count)
        return np.geomspace(self.start, self.end, count)


def arrival_times(
    count: int, rate: float, burstiness: float, seed: list[int], ramp: Ramp | None = None
) -> list[float]:
    """Return the arrival times of `count` requests in seconds, ascending from 0.

    Gaps follow a gamma distribution of shape `burstiness` and mean 1/`rate`: 1.0 is a Poisson
    process, less is burstier, more is steadier. An infinite rate has no gaps. A `ramp` replaces
    `rate`.

    Raises:
        ConfigError: a rate or `burstiness` is not positive.
    """
    if not rate > 0:
        raise ConfigError(
            f"--request-rate is {rate}; it must be positive.",
            fix="Use `inf` to send each request as soon as a client is free.",
            param="--request-rate",
        )
    if not 0 < burstiness < math.inf:
        raise ConfigError(
            f"--burstiness is {burstiness}; it must be positive and finite.",
            fix="Use 1.0 for a Poisson process.",
            param="--burstiness",
        )
    if ramp is not None and not (0 < ramp.start < math.inf and 0 < ramp.end < math.inf):
        raise ConfigError(
            f"The rate ramps from {ramp.start} to {ramp.end}; both must be positive and finite.",
            param="--ramp-up-start-rps",
        )
    if math.isinf(rate) and ramp is None:
        return [0.0] * count
    rates = np.full(count, rate) if ramp is None else ramp.rates(count)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / burstiness, size=count) / rates
    times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist() if count else []
    return times


def lengths(mean: int, ratio: float, count: int, seed: list[int]) -> list[int]:
    """Return `count` lengths, uniform in `mean` × (1 ± `ratio`).

    Raises:
        ConfigError: `ratio` is not in [0, 1).
    """
    if not 0.0 <= ratio < 1.0:
        raise ConfigError(
            f"--range-ratio is {ratio}; it must be at least 0 and less than 1.",
            param="--range-ratio",
        )
    low, high = max(1, math.ceil(mean * (1 - ratio))), math.floor(mean * (1 + ratio))
    drawn: list[int] = np.random.default_rng(seed).integers(low, high + 1, size=count).tolist()
    return drawn
