"""Remove figures that no engine can have, before causes are checked.

A step counts when it ends, so a window may hold the seconds of a step that began before it. A saved
file may hold anything.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, TypeVar, cast

import msgspec

from quire.core.images import IMAGE_PROCESSES
from quire.core.op_profile import OpProfile
from quire.explain.evidence import CORE, OFFLINE, Evidence, Window
from quire.explain.host import HostUse
from quire.explain.surroundings import Surroundings
from quire.metrics.requests import MOST_RECORDED, RecordedRequest

T = TypeVar("T")

SHORTEST_WINDOW = 1e-3
"""Seconds; rates over less time mean nothing."""
LEAST, MOST = 1e-12, 1e15
"""Less seconds or tokens count as 0, and more as `MOST`, so that nothing overflows."""
_STEP = ("prepare", "model", "encode", "sample")
"""Parts of the core's time that the executor spends on a step."""
NEARLY_ALL = 1.0 - 1e-6
"""Largest share of the time that a cause may claim, so that gains are finite. What a window allows
is less, see `Case.most_gain`."""


def gain_of(saved: float) -> float:
    """Return the gain in speed from saving this share of the time."""
    saved = _amount(saved, NEARLY_ALL)
    return saved / (1.0 - saved)


def bounded(evidence: Evidence) -> tuple[Evidence, list[str]]:
    """Return the evidence without impossible figures, and notes about those that matter."""
    limits, notes = evidence.limits, []
    if limits is not None and not limits.usable:
        limits = None
        notes.append(
            "This machine's measured limits are unusable: a rate is missing, zero or infinite. Run "
            "quire explain --measure."
        )
    window = _window(evidence)
    if window.seconds > 1.05 * evidence.window.seconds:
        notes.append(
            f"Steps took longer than the window of {_amount(evidence.window.seconds):.1f} s: all "
            f"figures refer to the {window.seconds:.1f} s of these steps."
        )
    possible = msgspec.structs.replace(
        evidence,
        window=window,
        cores=max(1, evidence.cores),
        ops=_profile(evidence.ops),
        limits=limits,
        host=_host(evidence.host),
        platform=None if evidence.platform is None else _numbers(evidence.platform),
        surroundings=_surroundings(evidence.surroundings, window.seconds),
        halves=[
            _window(msgspec.structs.replace(evidence, window=half)) for half in evidence.halves
        ],
    )
    return possible, notes


def _amount(value: float, most: float = MOST) -> float:
    """Return the value between 0 and `most`; 0 if it is not a number."""
    return min(value, most) if value >= LEAST else 0.0


def _window(evidence: Evidence) -> Window:
    w = _numbers(evidence.window)
    possible = [tokens > 0 and count > 0 for tokens, count in w.step_sizes]
    fields: dict[str, Any] = {
        name: [*compress(seconds, possible)] if len(seconds) == len(possible) else []
        for name, seconds in (("step_seconds", w.step_seconds), ("step_rest", w.step_rest))
    }
    most = dict.fromkeys(("kv_share", "kv_peak", "kv_held"), 1.0)
    most |= {"drafted_passes": w.draft_tokens, "accepted_tokens": w.draft_tokens}
    fields |= {name: min(getattr(w, name), limit) for name, limit in most.items()}
    parts = dict(w.parts)
    seconds = _fit_core(parts, max(SHORTEST_WINDOW, w.seconds), evidence)
    for name in parts.keys() - {*CORE, "queue"}:
        parts[name] = min(parts[name], lanes_of(name, evidence) * seconds)
    longest = evidence.config.scheduler.max_model_len
    return msgspec.structs.replace(
        w,
        seconds=seconds,
        parts=parts,
        step_sizes=[*compress(w.step_sizes, possible)],
        cached_tokens=min(w.cached_tokens, w.prompt_tokens),
        scrape_seconds=min(w.scrape_seconds, seconds),
        draft_seconds=min(w.draft_seconds, parts.get("prepare", 0.0)),
        arrivals=[_request(r, longest) for r in w.arrivals[-MOST_RECORDED:]],
        **fields,
    )


def lanes_of(name: str, evidence: Evidence) -> int:
    """Return how many processes share a part of the front end's time."""
    tokenizers = 1 if evidence.offline else max(1, evidence.args.tokenizer_pool_size)
    return {"tokenize": tokenizers, "images": IMAGE_PROCESSES}.get(name, 1)


def _numbers(plain: T, most: float = MOST) -> T:
    """Return plain data with its numbers between 0 and `MOST`, and its floats up to `most`."""
    found: Any = plain
    if isinstance(plain, float):
        found = _amount(plain, most)
    elif isinstance(plain, int):
        found = type(plain)(_amount(plain))
    elif isinstance(plain, list | tuple):
        found = type(plain)(_numbers(item, most) for item in plain)
    elif isinstance(plain, dict):
        found = {key: _numbers(value, most) for key, value in plain.items()}
    elif isinstance(plain, msgspec.Struct):
        fields = msgspec.structs.asdict(plain)
        found = type(plain)(**{name: _numbers(value, most) for name, value in fields.items()})
    return cast(T, found)


def _request(request: RecordedRequest, longest: int) -> RecordedRequest:
    """Return a request that the engine could have served."""
    prompt = max(1, min(request.prompt_tokens, longest - 1))
    shared, each = min(request.shared_tokens, prompt - 1), max(1, min(request.sequences, 128))
    tokens = min(request.output_tokens, max(0, longest - prompt))
    return RecordedRequest(request.arrived, prompt, shared, each, tokens)


def _surroundings(around: Surroundings | None, seconds: float) -> Surroundings | None:
    if around is None:
        return None
    around, most = _numbers(around), max(1, around.online) * seconds  # of all CPUs
    limits = {"throttled": most, "disk_wait": most, "memory_wait": seconds}
    limits |= dict.fromkeys(("stopped", "paused", "clock", "remote"), 1.0)
    fields = {name: min(getattr(around, name), limit) for name, limit in limits.items()}
    return msgspec.structs.replace(around, **fields)


def _fit_core(parts: dict[str, float], seconds: float, evidence: Evidence) -> float:
    """Limit the core's parts to the window, and return the window's seconds.

    Steps that took longer than the window extend it. With async scheduling the core also works
    while a step is computed. That time costs nothing, so it is subtracted.
    """
    core = [name for name in (OFFLINE if evidence.offline else CORE) if name in parts]
    overlapped = (
        [name for name in core if name not in _STEP] if evidence.config.async_scheduling else []
    )
    hidden = sum(parts[name] for name in overlapped)
    steps = sum(parts[name] for name in core) - hidden
    seconds = max(seconds, steps, hidden)
    surplus = steps + hidden - seconds
    if surplus > 0.0:
        for name in overlapped:
            parts[name] *= max(0.0, 1.0 - surplus / hidden)
    return seconds


def _profile(profile: OpProfile | None) -> OpProfile | None:
    if profile is None or profile.steps <= 0:
        return None
    ops = [op for op in profile.ops if op.seconds >= 1e-9]  # the clock's resolution
    return _numbers(msgspec.structs.replace(profile, ops=ops))


def _host(host: HostUse | None) -> HostUse | None:
    if host is None or not host.seconds >= SHORTEST_WINDOW or host.cpus < 1:
        return None
    host = _numbers(host)
    busy = min(host.busy, host.cpus * host.seconds)
    return msgspec.structs.replace(
        host,
        busy=busy,
        steal=min(host.steal, busy),
        loop_waited=min(host.loop_waited, host.seconds),
        waits=_numbers(host.waits, host.seconds),
        workers=_numbers(host.workers, host.seconds),
        neighbours=_numbers(host.neighbours, host.cpus),
    )
