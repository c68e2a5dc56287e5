"""Find the highest request rate at which a configuration meets the objective."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

RESOLUTION = 1.06
"""The search ends when the lowest rate that misses is within this factor of the highest that meets
the objective."""
GAIN = 1.03
"""A configuration is better only if its rate is higher by this factor."""
BRACKET = 1.2
"""After the predicted rate, the search tries one this factor away."""
DOUBTED, AGAIN = 0.7, 1.01
"""A result below DOUBTED times the throughput of all requests at once is checked: the lowest rate
that missed is measured again, AGAIN times as high."""
LOWEST = 1 / 32
"""The search gives up below this share of the throughput of all requests at once."""


class Measurement(msgspec.Struct, frozen=True):
    """One load on one configuration.

    Attributes:
        rate: requests sent per second; infinity is all at once.
        goodput: requests per second that met the objective.
        attainment: their share of all requests, 0 to 1.
        requests_s, output_tok_s: rates of all requests that succeeded.
        ttft_ms, tpot_ms, itl_ms, e2e_ms: percentiles by name, "p50" and "p99" at least.
        split: shares of the time by names of `metrics.times.PARTS`; empty if unknown.
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
"""Sends the load at a rate, in requests per second."""


class Found(msgspec.Struct, frozen=True):
    """The result of a search for a rate.

    Attributes:
        best: the measurement with the highest goodput of those that met the objective.
        why: why no higher rate was found, or no rate at all.
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
    """Return the highest rate at which a share `attainment` of requests meets the objective.

    The first measurement sends all requests at once. If it meets the objective, no search is
    needed. If not, its throughput bounds the rate, which is then bisected.

    Args:
        guess: called after the first measurement; returns the rate to try first, if it has one.
        beat: the best measurement so far. The search ends as soon as this configuration cannot be
            better: its throughput is too low, or it misses the objective at little more than the
            rate of `beat`.
    """
    top = measure(math.inf)
    if top.attainment >= attainment:
        return Found(top, "all requests at once meet the objective")
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
        if not kept and high < LOWEST * top.requests_s:
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
            # One bad moment of the machine would end the search far too low.
            doubts = False
            again = rounded(high * AGAIN)
            if (second := measure(again)).attainment >= attainment:
                kept.append(second)
                missed.remove(high)
                low, high = again, min(missed)
    best = max(kept, key=lambda m: m.goodput)
    return Found(best, f"at {high:.3g} requests/s too many requests miss the objective")


def _bound(
    measure: Measure, attainment: float, most: float, beat: Measurement
) -> Measurement | str:
    """Return a measurement a little above the best one's rate, or why this one is not better.

    Args:
        most: requests per second that leave if all come at once.
    """
    if most * GAIN < beat.goodput:
        return f"all at once: {most:.3g} requests/s; the best has {beat.goodput:.3g}"
    rate = rounded(GAIN * (beat.rate if math.isfinite(beat.rate) else beat.goodput))
    found = measure(rate)
    if found.attainment < attainment:
        return f"at {rate:.4g} requests/s only {found.attainment:.0%} meet the objective"
    return found


def kept_rate(measure: Measure, attainment: float, rate: float) -> Found:
    """Measure one rate, which another configuration has met."""
    found = measure(rate)
    met = found.attainment >= attainment
    return Found(found if met else None, f"{found.attainment:.0%} meet the objective at this rate")


def classic_rate(measure: Measure, attainment: float) -> Found:
    """Return the rate that vLLM's auto_tune script would find: all at once, then one request per
    second less each time. Below one per second, where that script gives up, halve the rate."""
    top = measure(math.inf)
    if top.attainment >= attainment:
        return Found(top, "all requests at once meet the objective")
    rate = math.floor(top.requests_s) + 1.0
    while rate > LOWEST * top.requests_s:
        found = measure(rate)
        if found.attainment >= attainment:
            return Found(found, f"{rate:g} requests/s is the first decreasing rate that meets it")
        rate = rate - 1.0 if rate > 1.0 else rounded(rate / 2)
    return Found(None, f"even {rate:.3g} requests/s are too many")


def rounded(rate: float) -> float:
    """Return the rate with three digits, so that a user can type it."""
    return float(f"{rate:.3g}")


def _next(low: float, high: float, expected: float | None) -> float:
    """Return the rate to try between the highest that met and the lowest that missed."""
    if expected is not None:
        doubted = expected * BRACKET if low >= rounded(expected) else expected / BRACKET
        for rate in (expected, doubted):
            if low < rounded(rate) < high:
                return rate
    return math.sqrt(low * high) if low else high / 2


def pareto(measurements: list[Measurement], latency: Callable[[Measurement], float]) -> list[int]:
    """Return the indices of the Pareto frontier of throughput and latency, by throughput."""
    order = sorted(
        range(len(measurements)),
        key=lambda i: (-measurements[i].requests_s, latency(measurements[i])),
    )
    kept: list[int] = []
    for index in order:
        if not kept or latency(measurements[index]) < latency(measurements[kept[-1]]):
            kept.append(index)
    return kept[::-1]
