"""Search values that are faster than the kernel's own by more than noise.

Fields are searched one after the other. Candidates run in turns, so that other load slows all of
them. Two rounds select two candidates. More rounds decide whether one of them replaces the best so
far. At the end the result is timed again against the kernel's own values, because a lucky gain does
not repeat.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from quire.bench.kernels.case import Call
from quire.bench.kernels.timing import Clock
from quire.bench.results.report import percentile
from quire.system.records import dataclass

LEAST_GAIN = 0.02
"""A smaller gain is not written."""
_SCREENING = 2
_FINALISTS = 2

Values = Mapping[str, int]
"""Field → value; other fields have the kernel's own value."""
Times = list[list[float]]
"""Seconds by call and round."""


class Repeats(Protocol):
    """Times a call under the values in force.

    Attributes:
        samples: seconds per call.
    """

    samples: list[float]

    def repeat(self) -> None:
        """Time one more repetition."""


@dataclass(frozen=True)
class Subject:
    """Calls that are tuned together.

    Attributes:
        calls: calls with rotating arguments, of equal weight; none may become slower.
        fields: field → values to try.
        apply: sets values for the following calls.
        clock: times a call for about so many seconds per repetition.
    """

    calls: Sequence[Call]
    fields: Mapping[str, Sequence[int]]
    apply: Callable[[Values], None]
    clock: Callable[[Call, float], Repeats] = Clock


@dataclass(frozen=True)
class Gain:
    """The gain of some values over others, from rounds that timed both.

    Attributes:
        value: geometric mean of the calls' medians; 0.1 is 10 % faster.
        spread: interquartile range of the rounds' gains.
        worst: the smallest gain of a call, plus that call's spread.
    """

    value: float
    spread: float
    worst: float

    @property
    def is_real(self) -> bool:
        return self.value > max(LEAST_GAIN, self.spread) and self.worst >= 0.0


@dataclass(frozen=True)
class Found:
    values: dict[str, int]
    gain: float


def compare(base: Times, times: Times) -> Gain:
    """Return how much faster `times` are than `base`."""
    calls = [[b / t for b, t in zip(*pair, strict=True)] for pair in zip(base, times, strict=True)]
    rounds = [_mean(ratios) for ratios in zip(*calls, strict=True)]
    return Gain(
        value=_mean([statistics.median(ratios) for ratios in calls]) - 1,
        spread=_middle_half(rounds),
        worst=min(statistics.median(ratios) + _middle_half(ratios) for ratios in calls) - 1,
    )


class Race:
    """Times a subject's calls under several settings, in turns.

    Args:
        seconds: time per call and round; each call runs at least once.
    """

    def __init__(self, subject: Subject, seconds: float) -> None:
        self._subject = subject
        subject.apply({})
        self._clocks = [subject.clock(call, seconds) for call in subject.calls]

    def run(self, settings: Sequence[Values], rounds: int) -> list[Times]:
        """Return the times of each setting; every other round runs in reverse order."""
        found: list[Times] = [[[] for _ in self._clocks] for _ in settings]
        for number in range(rounds):
            order = range(len(settings))
            for i in reversed(order) if number % 2 else order:
                self._subject.apply(settings[i])
                for clock, times in zip(self._clocks, found[i], strict=True):
                    clock.repeat()
                    times.append(clock.samples[-1])
        return found


def search(subject: Subject, rounds: int, seconds: float) -> Found | None:
    """Return the best values and their gain over the kernel's own; None without a real gain."""
    race = Race(subject, seconds)
    best: dict[str, int] = {}
    for field, values in subject.fields.items():
        tries = [best | {field: value} for value in values]
        for count, final in ((_SCREENING, False), (rounds, True)):
            base, *times = race.run([best, *tries], count)
            gains = [compare(base, t) for t in times]
            ranked = sorted(range(len(tries)), key=lambda i: -gains[i].value)
            if final and gains[ranked[0]].is_real:
                best = tries[ranked[0]]
            tries = [tries[i] for i in ranked[:_FINALISTS] if gains[i].value > 0]
            if not tries:
                break
    gain = compare(*race.run([{}, best], 2 * rounds + 1)) if best else None
    subject.apply({})
    return Found(best, gain.value) if gain is not None and gain.is_real else None


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _middle_half(ratios: Sequence[float]) -> float:
    return percentile(ratios, 0.75) - percentile(ratios, 0.25)
