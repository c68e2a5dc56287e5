"""The engines that bars compare: started for the first comparison, stopped after the last."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.bars.bar import Against, Setup
from quire.bench.compare import OURS, PEERS
from quire.bench.contest import Engine, EngineFailedError, numbers
from quire.bench.peers.driver import Options, Work
from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect

Key = tuple[str, Setup]
"""An engine's name and setup."""


class Pool:
    """Engines in memory, each in its own process that is paused while others run.

    Args:
        pythons: peer → the interpreter of its environment.
        home: see `contest.driver_home`.
        files: folder for files that peers create once.
        wanted: all comparisons; an engine starts large enough for all of its own.
    """

    def __init__(
        self, pythons: Mapping[str, str], home: Path, files: Path, wanted: Sequence[Against]
    ) -> None:
        self._pythons = {OURS: sys.executable, **pythons}
        self._home, self._files = home, files
        self._wanted = wanted
        self._later = list(wanted)
        self._engines: dict[Key, Engine] = {}
        self._versions: dict[Key, str] = {}
        self._failed: dict[Key, str] = {}

    def missing(self, subject: Against) -> list[str]:
        """Return why peers take no part, one line each: how to install them, or how they failed."""
        lines = []
        for key in subject.peers:
            name = key[0]
            if name not in self._pythons:
                install = PEERS[name].install
                lines.append(f"{name} is not installed: {install}; then --peer {name}=PYTHON")
            elif key in self._failed:
                lines.append(f"{name} ({key[1]}) failed: {self._failed[key]}")
        return lines

    def compare(self, subject: Against, repetitions: int, seed: int) -> dict[str, list[float]]:
        """Return engine and version → one number per repetition, Quire first.

        A peer that is missing or fails is left out; `missing` returns why.

        Raises:
            QuireError: Quire failed.
        """
        self._stop_unwanted()
        if subject in self._later:
            self._later.remove(subject)
        keys = [(OURS, subject.setup), *self._peers(subject)]
        running = keys if subject.alone else [key for key in keys if self._start(key)]
        load = subject.load
        samples: dict[Key, list[float]] = {key: [] for key in running}
        # The first is the warm-up, unless each engine starts anew.
        for repetition in range(int(subject.alone), repetitions + 1):
            work = Work(load.count, load.input_len, load.output_len, [seed, load.count, repetition])
            for key in running[:: -1 if repetition % 2 else 1]:
                number = self._turn(key, work, subject)
                if number is None:
                    running.remove(key)
                    del samples[key]
                elif repetition:
                    samples[key].append(number)
        return {self._versions[key]: values for key, values in samples.items()}

    def stop(self) -> None:
        """End all engines."""
        self._later.clear()
        self._stop_unwanted()

    def _peers(self, subject: Against) -> Iterable[Key]:
        return (key for key in subject.peers if key[0] in self._pythons and key not in self._failed)

    def _stop_unwanted(self) -> None:
        wanted = {key for subject in self._later for key in _keys(subject)}
        for key in self._engines.keys() - wanted:
            self._engines.pop(key).stop()

    def _start(self, key: Key) -> bool:
        """Start the engine if needed; return whether it runs.

        Raises:
            QuireError: Quire failed.
        """
        if key in self._engines:
            return True
        name, _ = key
        driver = "quire_llm" if name == OURS else PEERS[name].driver
        engine = Engine(name, self._pythons[name], driver, self._home)
        print(f"  starting {name} ({key[1]})", file=sys.stderr, flush=True)
        self._engines[key] = engine
        try:
            engine.start(self._options(key))
        except EngineFailedError as error:
            self._fail(key, error)
            return False
        self._versions[key] = engine.version
        return True

    def _turn(self, key: Key, work: Work, subject: Against) -> float | None:
        """Return the task's metric of one turn; None if the engine failed."""
        if not subject.alone:
            return self._ask(key, work, subject.task)
        for other in [*self._engines]:
            self._engines.pop(other).stop()
        number = self._ask(key, work, subject.task) if self._start(key) else None
        if key in self._engines:
            self._engines.pop(key).stop()
        return number

    def _ask(self, key: Key, work: Work, task: str) -> float | None:
        """Return the task's metric; None if the engine failed."""
        kind = "batch" if task == "batch" else "latency"
        try:
            return numbers(kind, work, self._engines[key].ask(work))[task]
        except EngineFailedError as error:
            self._fail(key, error)
            return None

    def _fail(self, key: Key, error: EngineFailedError) -> None:
        self._engines.pop(key).stop()
        if key[0] == OURS:
            raise QuireError(f"Quire failed: {error}") from None
        self._failed[key] = str(error)
        print(f"  {key[0]} ({key[1]}) failed: {error}", file=sys.stderr, flush=True)

    def _options(self, key: Key) -> Options:
        _, setup = key
        loads = [s.load for s in self._wanted if key in _keys(s)]
        threads = detect().cores
        own = EngineArgs(
            **setup.fields(),
            num_threads=threads,
            max_num_seqs=max(load.count for load in loads),
            max_model_len=max(load.max_len for load in loads),
            num_gpu_blocks_override=max(load.num_blocks() for load in loads),
            enable_prefix_caching=False,
        )
        return Options(
            model=setup.model,
            dtype=setup.dtype,
            quantization=setup.quantization,
            num_threads=threads,
            seed=own.seed,
            max_len=max(load.max_len for load in loads),
            max_seqs=own.max_num_seqs,
            files=str(self._files),
            own=asdict(own),
        )


def _keys(subject: Against) -> tuple[Key, ...]:
    return ((OURS, subject.setup), *subject.peers)
