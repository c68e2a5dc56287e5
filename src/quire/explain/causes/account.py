"""Time that no other cause explains: code that is not Quire's, sleep in the middle of work, the
garbage collector, and kernels that are slower than this machine's usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from quire.explain.causes.case import WORTH, Case, Kind, Suspect, advice, suspect
from quire.system.stacks import Place, Stacks

MAIN = "MainThread"
SLEEPS = 0.12
"""Share of the time from which sleep in the middle of work is a cause: samples are few."""
COLLECTS = 0.15
"""Share of the time that the collector never takes for Quire's objects; seen: 0.05."""
BLOCKS_LOOP = 0.15
"""Share of its time for which the API's event loop may not stand in one place."""
_IDLE = ("select", "receive", "_wait_for", "poll")
"""Functions in which a main thread waits for work."""


class _Spot(NamedTuple):
    """A place in one process, and the shares of the window for which a thread stood and slept."""

    process: str
    place: Place
    share: float
    slept: float

    @property
    def ran(self) -> float:
        return self.share - self.slept


def foreign_code(case: Case) -> Suspect | None:
    """Python code that is not Quire's takes an engine's time."""
    spots = [s for s in _spots(case) if s.place.foreign]
    main = [s for s in spots if s.place.thread == MAIN]
    if not main and not spots:
        return None
    lost = sum(_lost(case, s) for s in main)
    # A thread of its own takes the interpreter's lock, or a core, from the others.
    beside = [s for s in spots if s.place.thread != MAIN and s.ran >= WORTH]
    lost = min(0.95, max(lost, *(0.5 * s.ran for s in beside), 0.0))
    worst = max([*main, *beside], key=lambda s: s.share, default=None)
    if worst is None or worst.share < WORTH:
        return None
    what = "slept" if worst.slept > worst.share / 2 else "ran"
    gain = advice(f"a start without {worst.place.where.partition(':')[0]}", "runs Quire alone",
                  lost if worst in main else 0.0)  # fmt: skip
    if worst.process != _process(1):  # steps become small, or other ranks compute meanwhile
        gain = msgspec.structs.replace(gain, uncertainty=1.0)
    thread = "" if worst.place.thread == MAIN else f", thread {worst.place.thread!r}"
    return suspect(
        f"Code that is not Quire's {what} in {worst.process}{thread} for {worst.share:.0%} of the "
        f"time: {worst.place.where}.",
        lost,
        gain,
        floor=WORTH,
    )


def blocked(case: Case) -> Suspect | None:
    """A process of the engine sleeps in the middle of its work."""
    w, around = case.window, case.around
    if case.on_device or case.config.cluster.nnodes > 1:
        return None
    found: list[tuple[float, str]] = []
    known = around.stopped + sum(s.slept for s in _spots(case) if s.place.foreign)
    for standing in around.standing:
        share = standing.share - known
        if standing.computes:
            lost = share - w.loading / max(1e-9, w.running + w.waiting + w.loading)
            where = _most(case, 1)
        else:
            before = max(0.0, w.in_flight - w.running - w.waiting - w.loading)
            lost = min(share, w.share("idle")) if before >= max(0.5, w.in_flight / 4) else 0.0
            where = ""
        text = f"The process {standing.pid} ({_named(standing.name)}) slept in the middle of its "
        text += f"work for {share:.0%} of the time, most in the kernel's {standing.where}{where}"
        found.append((lost, text))
    if around.paused and case.evidence.stacks:
        spots = [s for s in _spots(case, 0) if not s.place.foreign and not _waits(s.place)]
        slept = sum(s.slept for s in spots)
        text = f"The API process's event loop stood for {slept:.0%} of the time without running"
        found.append((slept if slept >= BLOCKS_LOOP else 0.0, text + _most(case, 0)))
    lost, text = max(found, default=(0.0, ""))
    if lost < SLEEPS:
        return None
    return suspect(
        f"{text}. No cause that Quire knows explains it.",
        lost,
        advice("py-spy dump --pid PID, or strace", "shows what it waits for"),
        kind=Kind.WASTE,
        floor=WORTH,
    )


def garbage_collection(case: Case) -> Suspect | None:
    """Python's garbage collector runs for much of the time."""
    shares = [s.collecting / max(1e-9, s.seconds) for s in case.evidence.stacks]
    lost = max(shares, default=0.0)
    if lost < COLLECTS:
        return None
    return suspect(
        f"Python's garbage collector ran in {_process(shares.index(lost))} for {lost:.0%} of the "
        "time, much more than Quire's own objects need: code of others has changed its "
        "thresholds, calls it, or holds many objects.",
        lost,
        advice("no gc.set_threshold() and gc.collect() of your own", "collects seldom", lost),
    )


def loop_slept(case: Case) -> float:
    """Return the share of the window in which the event loop slept outside of its wait for work."""
    return sum(s.slept for s in _loop(case))


def loop_busy(case: Case) -> float:
    """Return the share of the window in which the event loop did not wait for work."""
    return sum(s.share for s in _loop(case))


def _loop(case: Case) -> list[_Spot]:
    spots = _spots(case, 0)
    return [s for s in spots if s.place.thread == MAIN and not _waits(s.place)]


def _spots(case: Case, only: int | None = None) -> Iterator[_Spot]:
    """Yield where the threads of the API process (0) and of those that compute stood."""
    for number, stacks in enumerate(case.evidence.stacks):
        if only in (None, number):
            yield from _of(number, stacks)


def _of(number: int, stacks: Stacks) -> Iterator[_Spot]:
    for place in stacks.places:
        share, slept = (
            min(1.0, s / max(1e-9, stacks.seconds)) for s in (place.seconds, place.slept)
        )
        yield _Spot(_process(number), place, share, slept)


def _process(number: int) -> str:
    """Return the name of a process by its number in `Evidence.stacks`."""
    return ("the API process", "the engine core")[number] if number < 2 else f"worker {number - 1}"


def _lost(case: Case, spot: _Spot) -> float:
    """Return what a main thread's spot costs; the core waits for the API process only if idle."""
    api = spot.process == _process(0)
    return min(spot.share, case.window.share("idle")) if api else spot.share


def _waits(place: Place) -> bool:
    return (place.called or place.where).rpartition(":")[2] in _IDLE


def _most(case: Case, number: int) -> str:
    """Return where a process's main thread slept most, in words."""
    spots = [s for s in _spots(case, number) if not _waits(s.place) and s.place.thread == MAIN]
    worst = max(spots, key=lambda s: s.slept, default=None)
    if worst is None or worst.slept < WORTH:
        return ""
    called = f" → {worst.place.called}" if worst.place.called else ""
    return f", at {worst.place.where}{called}"


def _named(module: str) -> str:
    return {"process": "the engine core", "rank": "a rank"}.get(module, module)
