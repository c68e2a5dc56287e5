"""From evidence to a report: check every cause, rank the findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from quire.core.op_profile import expert_balances
from quire.explain.bounds import bounded, lanes_of
from quire.explain.causes import CAUSES, ON_CPUS, WITHOUT_STEPS
from quire.explain.causes.case import (
    WORTH,
    Case,
    Kind,
    Suspect,
    open_case,
    saving,
    schedules,
    useful,
)
from quire.explain.confidence import agreement, flag_name, sure, verdicts
from quire.explain.evidence import Evidence
from quire.explain.replicas import of_all
from quire.explain.report import Change, Finding, Report

MOST_CHANGES = 3
IDLE = 0.5
SAME = 1e-3
"""A finding whose share differs less from its first change's saving is worth what that saves."""


class Predicted(NamedTuple):
    """A change's gain, and half of its range relative to it."""

    gain: float
    uncertainty: float


Predict = Callable[[Change], Predicted | None]
"""Returns what a change gains; None if it is unknown."""


def explain(evidence: Evidence, simulation: Callable[[Case], Predict] | None = None) -> Report:
    """Return the verdict on an engine, and the changes.

    Args:
        simulation: predicts changes of scheduling; without it, the cost model does.
    """
    evidence, notes = bounded(evidence)
    case = open_case(evidence)
    halves = _halves(evidence)
    suspects = _suspects(case)
    if simulation is not None and any(schedules(c) for s in suspects for c in s.changes):
        predict = simulation(case)
        suspects = _ranked([_simulated(suspect, predict) for suspect in suspects])
    found = sure(suspects, case, halves)
    w = evidence.window
    return Report(
        window_s=w.seconds,
        split=_split(evidence),
        verdict=found[0].finding if found else _nothing(case),
        causes=[suspect.finding for suspect in found],
        changes=[of_all(change, len(evidence.args.replicas)) for change in _changes(found)],
        ops=case.lines,
        limits=case.limits,
        experts=[] if evidence.ops is None else expert_balances(evidence.ops.ops),
        notes=notes + agreement(verdicts(halves)) + _notes(case),
        offline=evidence.offline,
        rates={
            "output_tok_s": w.output_tok_s,
            "prompt_tok_s": w.prompt_tokens / w.seconds,
            "steps_s": w.steps / w.seconds,
            "running": w.running,
            "waiting": w.waiting,
            "kv_share": w.kv_share,
        },
        thread=_thread(case),
    )


def _suspects(case: Case) -> list[Suspect]:
    """Return what every cause finds, the first verdict first."""
    possible = CAUSES.keys() if case.window.steps else WITHOUT_STEPS
    unfit = ON_CPUS if case.on_device else frozenset()
    return _ranked(
        [
            replace(suspect, cause=name)
            for name, find in CAUSES.items()
            if name in possible - unfit and (suspect := find(case)) is not None
        ]
    )


def _ranked(suspects: list[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda s: (s.kind.place, -s.share))


def _simulated(suspect: Suspect, predict: Predict) -> Suspect:
    """Return the suspect with simulated gains, and the share that the first one saves."""
    changes = []
    for change in suspect.changes:
        if schedules(change) and (found := predict(change)) is not None:
            change = msgspec.structs.replace(
                change, estimated_gain=found.gain, uncertainty=found.uncertainty, simulated=True
            )
        changes.append(change)
    share, kind = suspect.share, suspect.kind
    if changes and changes[0].simulated:
        estimated = saving(suspect.changes[0].estimated_gain)
        if abs(share - max(suspect.floor, estimated)) < SAME:
            share = max(suspect.floor, saving(changes[0].estimated_gain))
            kind = kind if share >= WORTH else Kind.ELSEWHERE
    return replace(suspect, share=share, changes=useful(changes, suspect.floor), kind=kind)


def _halves(evidence: Evidence) -> list[list[Suspect]]:
    """Return what each half of the window finds."""
    halves = [msgspec.structs.replace(evidence, window=half, halves=[]) for half in evidence.halves]
    return [_suspects(open_case(half)) for half in halves if half.window.steps]


def _split(evidence: Evidence) -> dict[str, float]:
    """Return the shares of the parts; see `Report.split`."""
    w = evidence.window
    return {name: w.share(name) / lanes_of(name, evidence) for name in w.parts if name != "queue"}


def _thread(case: Case) -> dict[str, float]:
    """Return what the core's thread did; see `Report.thread`."""
    host, left, shares = case.host, 1.0, {}
    if host is None or not host.workers:
        return {}
    worker, idle = host.workers[0], case.window.share("idle")
    for name, share in (
        ("runs", worker.ran / host.seconds),
        ("waits for a CPU", worker.waited / host.seconds),
        ("has no work", idle),
    ):
        shares[name] = min(left, share)
        left -= shares[name]
    return shares | {"sleeps": left}


def _changes(found: list[Suspect]) -> list[Change]:
    """Return the most useful changes: the first of each cause, then the others.

    Each flag appears once. A change of its value wins over advice to keep it.
    """
    firsts = [s.changes[0] for s in found if s.changes]
    changed = {flag_name(change) for change in firsts if change.fields}
    ordered = [change for change in firsts if change.fields or flag_name(change) not in changed]
    ordered += [change for s in found for change in s.changes[1:]]
    chosen: dict[str, Change] = {}
    for change in ordered:
        chosen.setdefault(flag_name(change), change)
    return list(chosen.values())[:MOST_CHANGES]


def _nothing(case: Case) -> Finding:
    w, idle, model = case.window, case.window.share("idle"), case.model
    text = f"Nothing is amiss: for {idle:.0%} of the time the engine waited for requests."
    if not w.steps and (w.running > 0 or model > IDLE):
        text = f"No step ended in {w.seconds:.1f} s, although requests run: there is nothing to "
        text += "explain yet. Watch for longer."
    elif not w.steps:
        text = f"No step was computed in {w.seconds:.1f} s: there is nothing to explain."
    elif idle > IDLE and w.waiting >= 1.0:
        text = (
            f"The engine waited for {idle:.0%} of the time although {w.waiting:.1f} requests are "
        )
        text += "in its queue. No known cause explains that."
    elif idle <= IDLE:
        text = f"Nothing is amiss: the model takes {model:.0%} of the time, and no known cause "
        text += "costs 5 % of it."
    return Finding("none", text, 0.0, fault=False)


def _notes(case: Case) -> list[str]:
    """Return notes about unknown or impossible evidence."""
    evidence, notes = case.evidence, []
    if (replicas := len(evidence.args.replicas)) > 1:
        notes.append(f"Findings are of the mean of {replicas} replicas, the rates of all together.")
    if case.limits is not None and case.limits.stale:
        notes.append(
            "The measured limit is stale: operations ran faster than it allows, unless their data "
            "is in caches. Run quire explain --measure on an idle machine."
        )
    if evidence.ops is None or not evidence.ops.ops:
        notes.append("The operations were not profiled: their distance to the limits is unknown.")
    if case.on_device:
        known = evidence.limits is not None
        whose = "those of its datasheet" if known else "unknown: gains rest on a cautious guess"
        notes.append(f"The GPU's limits are {whose}.")
    elif evidence.limits is None:
        notes.append(
            "This machine's limits have not been measured (quire explain --measure): gains rest on "
            "a cautious guess at them."
        )
    elif evidence.limits.disturbed:
        notes.append(
            "The limits were measured while other processes used "
            f"{evidence.limits.disturbance:.1f} cores. Run quire explain --measure on an idle "
            "machine."
        )
    if evidence.host is None:
        notes.append("The CPU use of other processes is unknown.")
    return notes
