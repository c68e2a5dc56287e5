"""Write a trace of native ops: `python -m quire.profile.trace_file PARTS FILE`.

The format is Chrome's JSON, for Perfetto and TensorBoard. Torch's trace, if there is one, is copied
as text. The ops become a separate thread below the one of their steps. A separate process does
this, so that Python's lock is free for the steps.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec
import numpy as np

TORCH, RUNS, LABELS = "torch.json", "runs.npy", "labels.json"
"""The parts: torch's trace (optional), `OpRuns.runs`, and `TraceFacts`."""
TRACK_NAME = "native ops"
STEPS_NAME = "steps"
_TRACK = 2**30
"""Added to the thread's id to get the id of the ops' thread."""
_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')
_HEAD_BYTES = 2**16
_CHUNK_BYTES = 2**20
_GZIP_LEVEL = 3
_NICE = 10


class Step(NamedTuple):
    """A step and its time.

    Attributes:
        begin: nanoseconds of the monotonic clock.
    """

    name: str
    begin: int
    nanoseconds: int


class TraceFacts(msgspec.Struct):
    """What a trace needs in addition to the ops.

    Attributes:
        pid, thread: the system's ids of the thread that computed the steps.
        clock_offset_ns: wall clock minus monotonic clock.
        labels: (name, module, isa, dtype) of each op.
        steps: the recorded ones; none if torch's trace has them.
    """

    pid: int
    thread: int
    clock_offset_ns: int
    labels: Sequence[tuple[str, str, str, str]] = ()
    steps: list[Step] = []

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def merge(parts: Path, target: Path) -> None:
    """Write `target`, compressed if it ends in `.gz`. It appears only when it is complete.

    Raises:
        OSError: it cannot be written.
        ValueError: torch's trace has an unknown format.
    """
    facts = msgspec.json.decode((parts / LABELS).read_bytes(), type=TraceFacts)
    runs = np.load(parts / RUNS)
    unfinished = parts / target.name
    with _open(unfinished) as out:
        if (parts / TORCH).exists():
            _add_to_torch(parts / TORCH, out, facts, runs)
        else:
            begins = [*runs[:1, 1].tolist(), *(step.begin for step in facts.steps)]
            base = min(begins, default=0) + facts.clock_offset_ns
            events = [*_steps(facts, base), *_events(facts, runs, base)]
            out.write(msgspec.json.encode({"baseTimeNanoseconds": base, "traceEvents": events}))
    os.replace(unfinished, target)


def _add_to_torch(torch_trace: Path, out: IO[bytes], facts: TraceFacts, runs: Any) -> None:
    """Copy torch's trace, with the native ops as its first events."""
    with torch_trace.open("rb") as source:
        head = source.read(_HEAD_BYTES)
        events = _EVENTS.search(head)
        if events is None:
            raise ValueError("torch's trace has no events")
        base = _BASE.search(head)
        out.write(head[: events.end()])
        for event in _events(facts, runs, int(base[1]) if base else 0):
            out.write(msgspec.json.encode(event) + b",\n")
        out.write(head[events.end() :])
        while chunk := source.read(_CHUNK_BYTES):
            out.write(chunk)


def _steps(facts: TraceFacts, base: int) -> Iterator[dict[str, Any]]:
    """Yield the events of the thread that computed the steps."""
    track = {"pid": facts.pid, "tid": facts.thread}
    yield {"ph": "M", "name": "thread_name", "ts": 0, **track, "args": {"name": STEPS_NAME}}
    start = facts.clock_offset_ns - base
    for name, begin, nanoseconds in facts.steps:
        times = {"ts": (begin + start) / 1e3, "dur": nanoseconds / 1e3}
        yield {"ph": "X", "cat": "step", "name": name, **track, **times}


def _events(facts: TraceFacts, runs: Any, base: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one thread: its names, then one complete event per run."""
    track = {"pid": facts.pid, "tid": facts.thread + _TRACK}
    yield {"ph": "M", "name": "thread_name", "ts": 0, **track, "args": {"name": TRACK_NAME}}
    sort = {"sort_index": facts.thread}
    yield {"ph": "M", "name": "thread_sort_index", "ts": 0, **track, "args": sort}
    start = facts.clock_offset_ns - base
    for label, begin, nanoseconds, rows, nbytes, flops in runs.tolist():
        name, module, isa, dtype = facts.labels[label]
        yield {
            "ph": "X",
            "cat": "native_op",
            "name": f"{module} {name}",
            **track,
            "ts": (begin + start) / 1e3,
            "dur": nanoseconds / 1e3,
            "args": {
                "rows": rows, "bytes": nbytes, "flops": flops, "isa": isa, "dtype": dtype,
                "GB/s": round(nbytes / max(1, nanoseconds), 2),
                "GFLOP/s": round(flops / max(1, nanoseconds), 2),
            },
        }  # fmt: skip


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "wb", _GZIP_LEVEL))
    return path.open("wb")


def main(argv: Sequence[str]) -> int:
    os.nice(_NICE)
    try:
        merge(Path(argv[0]), Path(argv[1]))
    except (OSError, ValueError) as error:
        print(getattr(error, "strerror", None) or error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
