"""Samples where the Python threads of this process stand: a profile that costs next to nothing."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import msgspec

from quire.system.proc import listed, quick

INTERVAL = 0.02
"""Seconds between two samples."""
SWITCH = 2e-4
"""Seconds after which a thread that runs Python lets the sampler run. By default it has time to
reach its next system call, and all time seems to go there."""
MOST_PLACES = 12
KERNELS = "quire-kernels"
"""Name of the threads that compute the model."""
_OWN = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = ("/site-packages/", "/dist-packages/")


class Place(msgspec.Struct, frozen=True):
    """A line of code, and the time that a thread spent there or in what it called.

    Attributes:
        thread: its name; "MainThread" runs the core's steps, or the API's event loop.
        where: "sampling/sampler.py:sample" of Quire, a path with its line of other code.
        foreign: it is neither Quire's code nor of a package.
        seconds: wall time.
        slept: the part of it in which the thread neither ran nor was ready to.
        called: the innermost function, if it is another one: "logging/__init__.py:flush".
    """

    thread: str
    where: str
    foreign: bool
    seconds: float
    slept: float
    called: str = ""


class Stacks(msgspec.Struct, frozen=True):
    """The samples of one process.

    Attributes:
        seconds: wall time.
        places: those with the most time.
        collecting: seconds of Python's garbage collector.
    """

    pid: int
    seconds: float
    places: list[Place]
    collecting: float = 0.0


class StackSampler:
    """Samples from its start to `stop`, in a thread of its own."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._kinds: dict[CodeType, bool | None] = {}
        self._spent = defaultdict[tuple[str, str, bool, str], list[float]](lambda: [0.0] * 2)
        self._used: dict[int, float] = {}
        self._python = {threading.get_native_id()}
        self._before = dict(_tasks())
        self._usual = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH, self._usual))
        self._begin = self._last = time.monotonic()
        self._collecting = self._collected = 0.0
        self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)
        gc.callbacks.append(self._note_collection)
        self._sample()
        self._thread.start()

    def stop(self) -> Stacks:
        """Return the samples."""
        self._over.set()
        self._thread.join()
        gc.callbacks.remove(self._note_collection)
        sys.setswitchinterval(self._usual)
        most = sorted(self._spent.items(), key=lambda item: -item[1][0])
        chosen = [item for item in most if item[0][2]][:MOST_PLACES]  # no place of Quire hides them
        chosen += [item for item in most if not item[0][2]][:MOST_PLACES]
        places = [
            Place(thread, where, foreign, seconds, slept, called)
            for (thread, where, foreign, called), (seconds, slept) in chosen
        ]
        return Stacks(
            os.getpid(),
            time.monotonic() - self._begin,
            [*places, *self._strangers()],
            self._collected,
        )

    def _run(self) -> None:
        while not self._over.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        """Add the time since the last sample to where each thread stands now.

        If the sample is late, a thread that has not run meanwhile may have been stopped, too.
        """
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            thread = threads.get(ident)
            if thread is None or not thread.native_id:
                continue
            self._python.add(thread.native_id)
            if thread is threading.current_thread():
                continue
            where, foreign, called = self._place(frame)
            if thread is not threading.main_thread() and not foreign:
                continue
            used = _used(f"/proc/self/task/{thread.native_id}")
            ran = used - self._used.get(thread.native_id, used)
            self._used[thread.native_id] = used
            # While this thread samples, one that runs Python waits for the interpreter's lock.
            waits = quick(f"/proc/self/task/{thread.native_id}/wchan").decode(errors="replace")
            spent = self._spent[thread.name, where, foreign, called]
            here = min(elapsed, 2 * INTERVAL + ran)
            asleep = 0.0 if waits in ("", "0") else max(0.0, here - ran)
            spent[0] += here
            spent[1] += asleep if "futex" in waits or not asleep else here

    def _strangers(self) -> Iterator[Place]:
        """Yield native threads that ran, other than the kernels': a library has started them."""
        if "torch" in sys.modules:  # it computes with its own
            return
        for native_id, used in _tasks():
            ran = used - self._before.get(native_id, 0.0)
            name = quick(f"/proc/self/task/{native_id}/comm").decode(errors="replace").strip()
            if native_id not in self._python and name != KERNELS and ran >= INTERVAL:
                yield Place(name, f"native thread {native_id}", True, ran, 0.0)

    def _place(self, frame: FrameType) -> tuple[str, bool, str]:
        """Return the innermost frame that is in no package, whether it is foreign, and the
        innermost of all."""
        inner, at = frame, frame
        while (foreign := self._kind(at.f_code)) is None and at.f_back is not None:
            at = at.f_back
        called = "" if at is inner else _named(inner)
        if foreign:
            return f"{at.f_code.co_filename}:{at.f_lineno} {at.f_code.co_name}", True, called
        return _named(at), False, called

    def _kind(self, code: CodeType) -> bool | None:
        """Return whether code is foreign; None of packages and of what has no file."""
        if code not in self._kinds:
            file = code.co_filename
            known = file.startswith((_LIBRARY, "<")) or any(name in file for name in _PACKAGES)
            self._kinds[code] = False if file.startswith(_OWN) else None if known else True
        return self._kinds[code]

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.monotonic()
        else:
            self._collected += time.monotonic() - self._collecting


def _named(frame: FrameType) -> str:
    file = frame.f_code.co_filename.removeprefix(_OWN).removeprefix(_LIBRARY)
    for name in _PACKAGES:
        file = file.rpartition(name)[2]
    return f"{file}:{frame.f_code.co_name}"


def _used(task: str) -> float:
    """Return the seconds for which a thread ran or was ready to."""
    ran, waited, *_ = [*quick(f"{task}/schedstat").split(), 0, 0]
    return (int(ran) + int(waited)) / 1e9


def _tasks() -> Iterator[tuple[int, float]]:
    """Yield the threads of this process with their seconds."""
    for task in listed(Path("/proc/self/task")):
        yield int(task.name), _used(str(task))
