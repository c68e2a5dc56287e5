"""Choose which configurations to measure, in which order, and which to skip.

The search is deterministic, and its only state is its measurements. So running an interrupted
search again over its study, which returns earlier measurements at once, resumes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import field
from functools import partial
from typing import Protocol

import msgspec

from quire.core.errors import QuireError
from quire.system.records import dataclass
from quire.tune.objective import (
    GAIN,
    Found,
    Measure,
    Measurement,
    best_rate,
    classic_rate,
    kept_rate,
)
from quire.tune.space import (
    LIMITS,
    MEMORY,
    UNMODELLED,
    Configuration,
    Space,
    configurations,
    differences,
    key,
    show_value,
)

PATIENCE = 3
"""The search of the limits ends after this many configurations in a row that are no better."""
ROUNDS = 2
"""Maximum number of searches of the limits and then of the other fields."""
LEAP = 1.2
"""A predicted gain above which another field's value is adopted before the limits are searched."""
ERROR = (0.05, 0.3)
"""Smallest and largest assumed relative error of a prediction."""

Bench = Callable[[Configuration], AbstractContextManager[Measure]]
"""Starts a server with a configuration; it ends with the block."""


class Predictor(Protocol):
    """Predicts the best measurement of a configuration."""

    def learn(self, configuration: Configuration, measurement: Measurement) -> None:
        """Take a measurement into account."""

    def predict(self, configuration: Configuration) -> Measurement | None:
        """Return the measurement at the best rate; None if no rate meets the objective, or the
        configuration cannot run."""


class Trial(msgspec.Struct):
    """A configuration that was measured.

    Attributes:
        stage: "start", "limits", "grid", "simplify", or the field whose value it changes.
        runs: all measurements, in order.
        best: the one that counts; None if it was no better, or no rate met the objective.
        why: why the search for its rate ended.
        predicted: goodput predicted before the configuration was measured.
    """

    configuration: Configuration
    stage: str
    runs: list[Measurement]
    best: Measurement | None
    why: str
    predicted: float | None = None

    @property
    def goodput(self) -> float:
        return self.best.goodput if self.best else 0.0


class Pruned(msgspec.Struct):
    """A configuration that was not measured, and the reason."""

    configuration: Configuration
    predicted: float | None
    why: str


class Result(msgspec.Struct):
    """The result of a search. `best` is None if no configuration meets the objective. No other is
    better by more than noise (`GAIN`)."""

    trials: list[Trial]
    pruned: list[Pruned]
    best: Trial | None

    @property
    def start(self) -> Trial:
        return self.trials[0]


@dataclass
class Search:
    """Measures the most promising configurations until no better one is expected.

    Attributes:
        start: the baseline; measured first.
        attainment: share of the requests that must meet the objective.
        max_runs: maximum number of configurations, including the start.
        why_not: returns why a configuration cannot run; None if it can.
        report: called with each trial when it ends.
    """

    space: Space
    start: Configuration
    bench: Bench
    predictor: Predictor
    attainment: float
    max_runs: int
    why_not: Callable[[Configuration], str | None] = lambda configuration: None
    report: Callable[[Trial], None] = lambda trial: None
    _trials: dict[str, Trial] = field(default_factory=dict)
    _pruned: dict[str, Pruned] = field(default_factory=dict)
    _best: Trial | None = None

    def run(self) -> Result:
        """Search.

        Raises:
            QuireError: the start cannot be measured.
        """
        self._measure(self.start, "start")
        for _ in range(ROUNDS):
            self._limits()
            best = self._best
            self._others()
            if self._best is best:
                break
        self._simplify()
        return self._result()

    def _result(self) -> Result:
        trials = list(self._trials.values())
        pruned = [p for name, p in self._pruned.items() if name not in self._trials]
        return Result(trials, pruned, self._best)

    def _limits(self) -> None:
        """Measure combinations of the step's limits, the most promising first."""
        roomy = {name: values[-1] for name, values in self.space.items() if name in MEMORY}
        base = self._leap(self._champion() | roomy)
        space = {n: vs if n in LIMITS else [base[n]] for n, vs in self.space.items()}
        candidates = list(configurations(space))
        failures = 0
        while failures < PATIENCE and not self._is_spent():
            chosen = self._most_promising(candidates)
            if chosen is None:
                return
            trial = self._measure(chosen, "limits")
            failures = 0 if trial is self._best else failures + 1
        for candidate in candidates:
            if not {key(candidate)} & {*self._trials, *self._pruned}:
                self._prune(candidate, "more promising configurations were no better")

    def _leap(self, base: Configuration) -> Configuration:
        """Return the base with values of other fields whose predicted gain is so large that the
        limits are better searched with them: for example more threads than one."""
        for name in self._other_fields():
            for value in self.space[name]:
                candidate = {**base, name: value}
                before, after = self._predicted(base), self._predicted(candidate)
                if self.why_not(candidate) is None and before and after and after > LEAP * before:
                    base = candidate
        return base

    def _other_fields(self) -> list[str]:
        return [name for name in self.space if name not in (*LIMITS, *MEMORY)]

    def _others(self) -> None:
        """Measure the other fields one at a time, each against the best so far."""
        for name in self._other_fields():
            for value in self.space[name]:
                champion = self._champion()
                candidate = {**champion, name: value}
                if key(candidate) in self._trials or self._is_spent():
                    continue
                if self._is_promising(candidate) or name in UNMODELLED:
                    self._measure(candidate, name)

    def _simplify(self) -> None:
        """Undo the best's changes without a measured or predicted gain, if it is as good so."""
        best = self._best
        if best is None:
            return
        simple = best.configuration
        for name in differences(self.start, simple):
            candidate = {**simple, name: self.start[name]}
            if not self._is_gain(name, candidate, simple) and self.why_not(candidate) is None:
                simple = candidate
        if key(simple) not in self._trials and len(self._trials) >= self.max_runs:
            return
        trial = self._trials.get(key(simple)) or self._measure(simple, "simplify", best.best)
        if trial.goodput * GAIN >= max(each.goodput for each in self._trials.values()):
            self._best = trial

    def _is_gain(self, name: str, without: Configuration, with_it: Configuration) -> bool:
        """Return whether measurements show a gain of a field's change; else predictions."""
        if (pair := compared(self._result(), name)) is not None:
            return pair[1].goodput >= GAIN * pair[0].goodput
        before, after = self._predicted(without), self._predicted(with_it)
        return before is None or (after is not None and after >= GAIN * before)

    def _most_promising(self, candidates: Iterable[Configuration]) -> Configuration | None:
        """Return the unmeasured candidate with the best prediction; of equal ones, the one with the
        fewest changes."""
        champion = self._champion()
        left = [c for c in candidates if key(c) not in self._trials and self._is_promising(c)]

        def rank(candidate: Configuration) -> tuple[float, int]:
            changes = sum(candidate[name] != champion[name] for name in candidate)
            return -round(math.log(self._predicted(candidate) or 1e-9), 2), changes

        return min(left, key=rank, default=None)

    def _is_promising(self, candidate: Configuration) -> bool:
        """Return whether a candidate may be the best; if not, prune it."""
        if (why := self.why_not(candidate)) is not None:
            self._prune(candidate, why)
            return False
        found = self.predictor.predict(candidate)
        if found is None:
            self._prune(candidate, "no rate is predicted to meet the objective")
            return False
        for trial in self._trials.values():
            if self.predictor.predict(trial.configuration) == found:
                self._prune(candidate, "the simulator predicts the same as for a measured one")
                return False
        champion = self._predicted(self._champion())
        if champion is not None and found.goodput * (1.0 + self._error()) < champion:
            self._prune(
                candidate, f"predicted {found.goodput:.3g} requests/s, the best {champion:.3g}"
            )
            return False
        self._pruned.pop(key(candidate), None)
        return True

    def _error(self) -> float:
        """Return the relative spread of measurements over predictions."""
        errors = [
            math.log(trial.goodput / trial.predicted)
            for trial in self._trials.values()
            if trial.best and trial.predicted
        ]
        spread = max(errors) - min(errors) if len(errors) > 1 else 0.1
        return min(max(spread, ERROR[0]), ERROR[1])

    def _measure(
        self, configuration: Configuration, stage: str, same: Measurement | None = None
    ) -> Trial:
        """Measure the best rate of a configuration, or whether it has the rate of `same`, too."""
        best = self._best
        trial = Trial(configuration, stage, [], None, "", self._predicted(configuration))
        may_fail = bool(self._trials)
        self._trials[key(configuration)] = trial

        def guess() -> float | None:
            found = self.predictor.predict(configuration)
            return found.rate if found is not None and math.isfinite(found.rate) else None

        def find(measure: Measure) -> Found:
            if same is not None:
                return kept_rate(measure, self.attainment, same.rate)
            beat = best.best if best else None
            return best_rate(measure, self.attainment, guess=guess, beat=beat)

        learn = partial(self.predictor.learn, configuration)
        _run(trial, self.bench, find, learn, may_fail=may_fail)
        if trial.predicted is None and trial.best is not None:
            trial.predicted = self._predicted(configuration)
        if trial.best is not None and (best is None or trial.goodput >= GAIN * best.goodput):
            self._best = trial
        self.report(trial)
        return trial

    def _prune(self, configuration: Configuration, why: str) -> None:
        predicted = self._predicted(configuration)
        self._pruned[key(configuration)] = Pruned(configuration, predicted, why)

    def _predicted(self, configuration: Configuration) -> float | None:
        found = self.predictor.predict(configuration)
        return found.goodput if found else None

    def _champion(self) -> Configuration:
        """Return the best configuration so far, or the start if none meets the objective."""
        return self._best.configuration if self._best else self.start

    def _is_spent(self) -> bool:
        """Return whether only the run is left that `_simplify` may need."""
        changed = self._best is not None and self._best is not self._trials[key(self.start)]
        return len(self._trials) + changed >= self.max_runs


def compared(result: Result, name: str) -> tuple[Trial, Trial] | None:
    """Return trials with the start's and the best's value of a field that differ in nothing else
    but the memory share; None if there are none."""
    assert result.best is not None
    change = differences(result.start.configuration, result.best.configuration)[name]
    aside = set() if name in MEMORY else set(MEMORY)
    for after in [result.best, *reversed(result.trials)]:
        for before in result.trials:
            changed = differences(before.configuration, after.configuration)
            if {*changed} - aside == {name} and changed[name] == change:
                return before, after
    return None


def grid(
    space: Space,
    start: Configuration,
    bench: Bench,
    *,
    attainment: float,
    why_not: Callable[[Configuration], str | None] = lambda configuration: None,
    find: Callable[[Measure, float], Found] = classic_rate,
    report: Callable[[Trial], None] = lambda trial: None,
) -> Result:
    """Measure the start, then every combination, each at the rate that `find` returns."""
    trials: dict[str, Trial] = {}
    pruned: list[Pruned] = []
    for configuration in [start, *(start | chosen for chosen in configurations(space))]:
        if key(configuration) in trials:
            continue
        if (why := why_not(configuration)) is not None:
            pruned.append(Pruned(configuration, None, why))
            continue
        trial = Trial(configuration, "grid" if trials else "start", [], None, "")
        trials[key(configuration)] = trial
        _run(trial, bench, lambda measure: find(measure, attainment))
        report(trial)
    good = [trial for trial in trials.values() if trial.best is not None]
    best = max(good, key=lambda trial: trial.goodput, default=None)
    return Result(list(trials.values()), pruned, best)


def _run(
    trial: Trial,
    bench: Bench,
    find: Callable[[Measure], Found],
    learn: Callable[[Measurement], None] = lambda found: None,
    *,
    may_fail: bool = True,
) -> None:
    """Measure a trial's configuration at the rates that `find` asks for."""

    def recorded(rate: float) -> Measurement:
        trial.runs.append(measure(rate))
        learn(trial.runs[-1])
        return trial.runs[-1]

    try:
        with bench(trial.configuration) as measure:
            found = find(recorded)
    except QuireError as error:
        if not may_fail:
            raise
        found = Found(None, f"it failed: {error}")
    trial.best, trial.why = found.best, found.why


def describe(trial: Trial) -> str:
    """Return a trial's result in a few words."""
    if trial.best is None:
        return trial.why
    rate = "all at once" if math.isinf(trial.best.rate) else f"at {show_value(trial.best.rate)}/s"
    return f"{trial.best.goodput:.3g} requests/s within the objective, sent {rate}"
