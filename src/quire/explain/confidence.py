"""How sure a verdict is, and how wide the range of an estimated gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from quire.explain.causes.case import Case, Kind, Suspect
from quire.explain.report import THROUGHPUT, Change

FEW_STEPS = 20
CROWDED = 0.5
"""CPUs that other processes use, from which estimates from times are less sure."""
WIDE = 0.7
"""Uncertainty from which the lower end of an estimate is reported: "at least"."""
MEASURED, GUESSED = 0.15, 0.3
"""Relative error of a saved share of the time, with measured limits and with guessed ones."""


def sure(
    found: Sequence[Suspect], case: Case, halves: Sequence[Sequence[Suspect]]
) -> list[Suspect]:
    """Return the suspects with their confidence, and the ranges of their changes.

    Args:
        halves: what each half of the window finds; empty if it has no halves.
    """
    host, named = case.evidence.host, verdicts(halves)
    crowded = host is not None and host.others > CROWDED
    error = MEASURED if case.estimate.measured else GUESSED
    error *= 1.5 if crowded else 1.0
    sure_of = []
    for suspect in found:
        trust = 1.0
        if suspect.kind in (Kind.WASTE, Kind.LIMIT, Kind.ELSEWHERE):
            trust *= 0.85 if crowded else 1.0
            trust *= 1.0 if case.estimate.measured else 0.85
        trust *= 1.0 if case.window.steps >= FEW_STEPS else 0.8
        if named and suspect.cause not in named:
            trust *= 0.7
        elif len(set(named)) > 1:
            trust *= 0.85
        changes = [
            _ranged(change, case, error, _apart(suspect.cause, change, halves))
            for change in suspect.changes
        ]
        sure_of.append(replace(suspect, changes=changes, confidence=trust))
    return sure_of


def _ranged(change: Change, case: Case, error: float, apart: float) -> Change:
    """Return the change with a gain that the window can show, and its uncertainty.

    Args:
        error: relative error of the saved share.
        apart: see `_apart`.
    """
    gain = min(change.estimated_gain, case.most_gain(change.metric))
    error += case.waited / 2  # others may come and go
    if change.fields and change.metric == THROUGHPUT:
        gain = case.within_cores(gain, simulated=change.simulated)
    # If a share s of the time is saved, an error of s is 1 / (1 - s) times as large in the gain.
    of_model = error if change.simulated else error * (1.0 + gain)
    of_steps = max(1, case.window.steps) ** -0.5
    uncertainty = min(1.0, math.hypot(of_model, of_steps, apart, change.uncertainty))
    least = uncertainty > WIDE
    if least:
        gain /= 1.0 + uncertainty
    return msgspec.structs.replace(
        change, estimated_gain=gain, uncertainty=uncertainty, at_least=least
    )


def _apart(cause: str, change: Change, halves: Sequence[Sequence[Suspect]]) -> float:
    """Return half the difference of a change's gains in the two halves, relative to their mean."""
    gains = [0.0] * len(halves)
    for number, half in enumerate(halves):
        for other in (c for s in half if s.cause == cause for c in s.changes):
            if flag_name(other) == flag_name(change):
                gains[number] = other.estimated_gain
    return (max(gains) - min(gains)) / sum(gains) if sum(gains) > 0.0 else 0.0


def flag_name(change: Change) -> str:
    """Return the flag without its value; other advice whole."""
    if not change.flag.startswith("--"):
        return change.flag
    return change.flag.split()[0].replace("--no-", "--")


def verdicts(halves: Sequence[Sequence[Suspect]]) -> list[str]:
    """Return the cause that each half names first."""
    return [half[0].cause if half else "none" for half in halves]


def agreement(named: Sequence[str]) -> list[str]:
    """Return a note if the two halves of the window name different causes."""
    if len(set(named)) < 2:
        return []
    first, second = named
    note = f"The first half of the window names {first}, the second {second}: the load or the "
    return [f"{note}machine changed. Watch for longer to be sure."]
