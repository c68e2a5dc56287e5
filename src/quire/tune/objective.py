"""What is searched for: the highest rate of requests at which a configuration keeps its promise."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

RESOLUTION = 1.06
"""A rate is found when the lowest that was missed is at most so many times the highest met."""
GAIN = 1.03
"""Whoever claims to be better has to show so many times the rate."""
BRACKET = 1.2
"""A predicted rate is first doubted by this factor."""
DOUBTED, AGAIN = 0.7, 1.01
"""A search that would end below this share of the rate at which requests leave when all are sent at
once asks once more for what was too high, at so many times the rate."""
LOWEST = 1 / 32
"""Of the rate at which requests leave when all come at once: below it nobody is served well."""


class Measurement(msgspec.Struct, frozen=True):
    """One load on one configuration.

    Attributes:
        rate: requests sent a second; infinity is all at once.
        goodput: requests a second that kept to the objective.
        attainment: their share of all requests, 0 to 1.
        requests_s, output_tok_s: of all requests that succeeded.
        ttft_ms, tpot_ms, itl_ms, e2e_ms: percentiles by name, "p50" and "p99" at least.
        split: shares of the time by the names of `metrics.times.PARTS`; empty if unknown.
    """

    rate: float
    goodput: float
    attainment: float
    requests_s: float
    output_tok_s: float
    ttft_ms: dict[str, float] = {}
    tpot_ms: dict[str, float] = {}
    itl_ms: dict[str, float] = {}
    e2e_ms: dict[str, float] = {}
    split: dict[str, float] = {}


Measure = Callable[[float], Measurement]
"""Sends the load at a rate, requests a second."""


class Found(msgspec.Struct, frozen=True):
    """What the search for a rate ended with.

    Attributes:
        best: of the measurements that kept the promise, the one with the highest goodput.
        why: why no higher rate, or no rate at all.
    """

    best: Measurement | None
    why: str


def best_rate(
    measure: Measure,
    attainment: float,
    *,
    guess: Callable[[], float | None] = lambda: None,
    beat: Measurement | None = None,
) -> Found:
    """The highest rate at which a share `attainment` of requests keeps to the objective.

    Everything at once comes first: if that keeps the promise there is nothing to search, and if
    not, it shows the rate at which requests leave. Below it the rate is bisected, fractions of a
    request a second included.

    Args:
        guess: called after the first measurement; the rate to begin with, where one is expected.
        beat: the best so far. The search ends as soon as it is clear that this one is not better:
            requests do not leave fast enough, or the promise is broken at little more than the
            other's rate.
    """
    top = measure(math.inf)
    if top.attainment >= attainment:
        return Found(top, "all requests at once keep to the objective")
    high = top.requests_s
    kept: list[Measurement] = []
    low = 0.0
    if beat is not None:
        bound = _bound(measure, attainment, high, beat)
        if isinstance(bound, str):
            return Found(None, bound)
        kept.append(bound)
        low, high = bound.rate, max(high, bound.rate * RESOLUTION * 1.01)
    expected = guess()
    tried: set[float] = set()
    missed, doubts = [high], True
    while low == 0.0 or high / low > RESOLUTION:
        if high < LOWEST * top.requests_s:
            return Found(None, f"even {high:.3g} requests/s are too many")
        rate = rounded(_next(low, high, expected))
        if rate in tried or not low < rate < high:
            break
        tried.add(rate)
        found = measure(rate)
        if found.attainment >= attainment:
            kept.append(found)
            low = rate
        else:
            missed.append(rate)
            high = rate
        if low and high / low <= RESOLUTION and high < DOUBTED * top.requests_s and doubts:
            # One bad moment of the machine would end the search far below what it can do.
            doubts = False
            again = rounded(high * AGAIN)
            if (second := measure(again)).attainment >= attainment:
                kept.append(second)
                missed.remove(high)
                low, high = again, min(missed)
    best = max(kept, key=lambda m: m.goodput)
    return Found(best, f"at {high:.3g} requests/s too many miss the objective")


def _bound(
    measure: Measure, attainment: float, most: float, beat: Measurement
) -> Measurement | str:
    """Return a measurement a little above the best one's rate, or why this one is not better.

    Args:
        most: requests per second that leave if all come at once.
    """
    if most * GAIN < beat.goodput:
        return f"all at once, {most:.3g} requests/s leave, and the best has {beat.goodput:.3g}"
    rate = rounded(GAIN * (beat.rate if math.isfinite(beat.rate) else beat.goodput))
    found = measure(rate)
    if found.attainment < attainment:
        return f"at {rate:.4g} requests/s only {found.attainment:.0%} keep to the objective"
    return found


def classic_rate(measure: Measure, attainment: float) -> Found:
    """The rate by the rule of vLLM's auto_tune script: all at once, then one request a second
    less each time. Below one a second, where that script gives up, by halves."""
    top = measure(math.inf)
    if top.attainment >= attainment:
        return Found(top, "all requests at once keep to the objective")
    rate = math.floor(top.requests_s) + 1.0
    while rate > LOWEST * top.requests_s:
        found = measure(rate)
        if found.attainment >= attainment:
            return Found(found, f"the first of decreasing rates, {rate:g} requests/s")
        rate = rate - 1.0 if rate > 1.0 else rounded(rate / 2)
    return Found(None, f"even {rate:.3g} requests/s are too many")


def rounded(rate: float) -> float:
    """To three digits, so that a rate can be told, typed, and found again."""
    return float(f"{rate:.3g}")


def _next(low: float, high: float, expected: float | None) -> float:
    """The rate to try between one that was met and one that was missed."""
    if expected is not None:
        doubted = expected * BRACKET if low >= rounded(expected) else expected / BRACKET
        for rate in (expected, doubted):
            if low < rounded(rate) < high:
                return rate
    return math.sqrt(low * high) if low else high / 2


def pareto(measurements: list[Measurement], latency: Callable[[Measurement], float]) -> list[int]:
    """Indices of those of which no other has more throughput and less latency; by throughput."""
    order = sorted(
        range(len(measurements)),
        key=lambda i: (-measurements[i].requests_s, latency(measurements[i])),
    )
    kept: list[int] = []
    for index in order:
        if not kept or latency(measurements[index]) < latency(measurements[kept[-1]]):
            kept.append(index)
    return kept[::-1]
