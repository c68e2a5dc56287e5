"""What to ask: random prompts, and the moments at which they arrive. Seeded, so repeatable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import ConfigError

_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work number night
point home water room mother area money story fact month lot right study book eye job word
"""


def token_prompts(count: int, length: int, vocab_size: int, seed: list[int]) -> list[list[int]]:
    """`count` lists of `length` token ids, uniform in [0, vocab_size).

    Args:
        seed: numbers that together name the stream, such as `[--seed, repetition]`; prompts of
            different repetitions differ, so that none finds the other's prefix in the cache.
    """
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = rng.integers(0, vocab_size, size=(count, length)).tolist()
    return prompts


def text_prompts(count: int, length: int, seed: list[int]) -> list[str]:
    """`count` texts of `length` common English words: about one token each in most vocabularies."""
    rng = np.random.default_rng(seed)
    words = _WORDS.split()
    picks = rng.integers(0, len(words), size=(count, length))
    return [" ".join(words[i] for i in row) for row in picks]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that grows, or falls, from the first request to the last."""

    strategy: Literal["linear", "exponential"]
    start: float
    """Requests a second."""
    end: float

    def rates(self, count: int) -> NDArray[np.float64]:
        """The rate at each of `count` requests: equal steps, or equal factors. float64 [count]."""
        if self.strategy == "linear":
            return np.linspace(self.start, self.end, count)
        return np.geomspace(self.start, self.end, count)


def arrival_times(
    count: int, rate: float, burstiness: float, seed: list[int], ramp: Ramp | None = None
) -> list[float]:
    """Seconds after the start at which each of `count` requests arrives, never decreasing.

    The first arrives at 0. The gaps follow a gamma distribution of shape `burstiness` and mean
    1/`rate`: 1.0 is a Poisson process, less is burstier, more is steadier. An infinite rate has
    no gaps. A `ramp` takes the place of `rate`.

    Raises:
        ConfigError: unless the rates and `burstiness` are positive.
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
    """`count` lengths, uniform from `mean` less the share `ratio` of it to as much more.

    Raises:
        ConfigError: unless 0 ≤ `ratio` < 1.
    """
    if not 0.0 <= ratio < 1.0:
        raise ConfigError(
            f"--range-ratio is {ratio}; it must be at least 0 and less than 1.",
            param="--range-ratio",
        )
    low, high = max(1, math.ceil(mean * (1 - ratio))), math.floor(mean * (1 + ratio))
    drawn: list[int] = np.random.default_rng(seed).integers(low, high + 1, size=count).tolist()
    return drawn
