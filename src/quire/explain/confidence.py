"""How sure a verdict is, and how wide the range of an estimated gain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.explain.causes.case import Case, Kind, Suspect

FEW_STEPS = 20
CROWDED = 0.5
"""CPUs that other processes use, from which estimates from times are less sure."""
MEASURED, GUESSED = 0.3, 0.6
"""Uncertainty of an estimate with measured limits, and with guessed ones."""


def sure(found: Sequence[Suspect], case: Case, halves: Sequence[str]) -> list[Suspect]:
    """Return the suspects with their confidence, and the uncertainty of their changes.

    Args:
        halves: the cause that each half of the window names; empty if it has no halves.
    """
    host = case.evidence.host
    crowded = host is not None and host.others > CROWDED
    uncertainty = MEASURED if case.estimate.measured else GUESSED
    uncertainty *= 1.5 if crowded else 1.0
    sure_of = []
    for suspect in found:
        finding, trust = suspect.finding, 1.0
        if suspect.kind not in (Kind.PROVEN, Kind.CLIENTS, Kind.NEIGHBOUR, Kind.DEMAND):
            trust *= 0.85 if crowded else 1.0
            trust *= 1.0 if case.estimate.measured else 0.85
        trust *= 1.0 if case.window.steps >= FEW_STEPS else 0.8
        if halves and finding.cause not in halves:
            trust *= 0.7
        elif len(set(halves)) > 1:
            trust *= 0.85
        sure_of.append(
            Suspect(
                msgspec.structs.replace(finding, confidence=round(finding.confidence * trust, 2)),
                [msgspec.structs.replace(c, uncertainty=uncertainty) for c in suspect.changes],
                suspect.kind,
            )
        )
    return sure_of


def agreement(halves: Sequence[str]) -> list[str]:
    """Return a note if the two halves of the window name different causes."""
    if len(set(halves)) < 2:
        return []
    first, second = halves
    note = (
        f"The first half of the window names {first}, the second {second}: the load or the machine "
        "changed. Watch for longer to be sure."
    )
    return [note]
