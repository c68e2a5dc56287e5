"""Measurements on disk. A killed search loses only the load in progress.

`study.jsonl` has one line per measurement, failure or note, synced when it is written. Its first
line has the settings. `search` decides which configuration is next.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec

from quire.core.errors import ConfigError, QuireError
from quire.system.records import dataclass
from quire.tune.objective import Measure, Measurement
from quire.tune.search import Bench
from quire.tune.space import Configuration, key

JOURNAL = "study.jsonl"


@dataclass(slots=True)
class _Known:
    """What was measured of a configuration, by rate, and why its server failed."""

    runs: dict[float, Measurement] = field(default_factory=dict)
    failure: str | None = None


class Study:
    """The measurements of one objective on one workload, model and space.

    Args:
        folder: created if it does not exist.
        settings: what the measurements depend on, other than the configuration. A folder with other
            settings is refused.

    Attributes:
        resumed: number of earlier measurements.

    Raises:
        ConfigError: the folder cannot be created, is in use or has other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / JOURNAL).open("a+b")
        except OSError as error:
            raise ConfigError(
                f"--study {folder} cannot be written: {error.strerror}.", param="--study"
            ) from None
        self._known: dict[str, _Known] = {}
        self._notes: dict[str, Any] = {}
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(folder, json.loads(json.dumps(settings)))
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"Another `quire tune` is using {folder}.",
                fix="Wait until it ends, or name another folder with --study.",
                param="--study",
            ) from None
        except BaseException:
            self.close()
            raise
        self.resumed = sum(len(known.runs) for known in self._known.values())

    def close(self) -> None:
        """Release the folder for others."""
        self._file.close()

    def note(self, name: str) -> Any:
        """Return a value stored with `set_note`; None if there is none."""
        return self._notes.get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Store a JSON value with the measurements."""
        self._notes[name] = value
        self._write(note=name, value=value)

    def bench(self, real: Bench) -> Bench:
        """Wrap `real`: return earlier measurements and failures without a server."""

        @contextmanager
        def remembered(configuration: Configuration) -> Iterator[Measure]:
            name = key(configuration)
            known = self._known.setdefault(name, _Known())
            with ExitStack() as stack:
                server: list[Measure] = []

                def measure(rate: float) -> Measurement:
                    if rate in known.runs:
                        return known.runs[rate]
                    if known.failure is not None:
                        raise QuireError(known.failure)
                    try:
                        if not server:
                            server.append(stack.enter_context(real(configuration)))
                        found = server[0](rate)
                    except QuireError as error:
                        known.failure = str(error)
                        self._write(configuration=name, failure=known.failure)
                        raise
                    self._write(configuration=name, run=msgspec.to_builtins(found))
                    known.runs[rate] = found
                    return found

                yield measure

        return remembered

    def _read(self, folder: Path, settings: dict[str, Any]) -> None:
        """Read the journal, without a torn last line; begin a new one with the settings."""
        self._file.seek(0)
        lines = [line for line in self._file if line.endswith(b"\n")]
        self._file.truncate(sum(map(len, lines)))
        if not lines:
            self._write(settings=settings)
            return
        known, *records = map(json.loads, lines)
        if (old := known["settings"]) != settings:
            changed = sorted(n for n in {*old, *settings} if old.get(n) != settings.get(n))
            raise ConfigError(
                f"The study in {folder} has another {', '.join(changed)}, so its measurements do "
                "not apply.",
                fix="Name another folder with --study, or delete this one.",
                param="--study",
            )
        for record in records:
            if "note" in record:
                self._notes[record["note"]] = record["value"]
                continue
            of = self._known.setdefault(record["configuration"], _Known())
            of.failure = record.get("failure")
            if "run" in record:
                run = msgspec.convert(record["run"], Measurement)
                of.runs[run.rate] = run

    def _write(self, **record: Any) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
