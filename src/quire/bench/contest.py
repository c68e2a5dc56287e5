"""Engines in separate processes that take turns; the others are stopped (SIGSTOP) meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import quire
from quire.bench.latency import timings
from quire.bench.peers.driver import Options, Work
from quire.core.errors import QuireError
from quire.core.outputs import RequestMetrics
from quire.system import env

METRICS = {
    "prefill": "prefill_tok_s",
    "decode": "decode_tok_s",
    "batch": "output_tok_s",
    "startup": "start_to_first_token_s",
}
"""Task → metric. Higher rates are better, and lower seconds."""
LONGEST_TURN = 900.0
"""Seconds after which an engine that does not answer is killed."""


class Engine:
    """The process of one engine; `start` may be called again."""

    def __init__(self, name: str, python: str, driver: str, home: Path) -> None:
        self.name = name
        self.version = name
        self._command = [python, "-m", f"quire.bench.peers.{driver}"]
        self._environment = env.of_child(PYTHONPATH=str(home))
        self._log: TextIO | None = None
        self._process: subprocess.Popen[str] | None = None

    def start(self, options: Options) -> float:
        """Start the process; return the seconds to its first token.

        Raises:
            EngineFailedError: with the last lines that it printed.
        """
        self.stop()
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - until stop()
        begin = time.monotonic()
        self._process = subprocess.Popen(
            [*self._command, json.dumps(asdict(options))],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that signals reach its children too
        )
        ready = self._read()
        self.version = ready["engine"]
        return float(ready["first_token"] - begin - ready["prepared"])

    def ask(self, work: Work) -> dict[str, Any]:
        """Return the driver's answer: `elapsed`, and the times of each of the `requests`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # `_read` reports why
            self._process.stdin.write(json.dumps(asdict(work)) + "\n")
            self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._log is not None
        # An engine that hangs must not block the others for ever.
        limit = threading.Timer(LONGEST_TURN, self._signal, (signal.SIGKILL,))
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            self._signal(signal.SIGSTOP)  # its spinning threads would slow the other engines
            return answer
        self._process.wait()
        self._log.seek(0)
        last = " | ".join(self._log.read().strip().splitlines()[-3:])
        raise EngineFailedError(last or f"it ended with status {self._process.returncode}")


class EngineFailedError(QuireError):
    """An engine ended before it answered."""

    code = "engine_failed"


@contextmanager
def driver_home() -> Iterator[Path]:
    """Yield a folder for `Engine`s with Quire's sources, but nothing of its environment."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "quire").symlink_to(Path(quire.__file__).parent)
        yield home


def numbers(kind: str, work: Work, answer: Mapping[str, Any]) -> dict[str, float]:
    """Return task → metric of one turn: `batch`, or `prefill` and `decode` for kind "latency".

    Args:
        answer: the result of `Engine.ask`.
    """
    if kind == "batch":
        return {"batch": work.count * work.output_len / answer["elapsed"]}
    requests = [RequestMetrics(**request) for request in answer["requests"]]
    found = timings(requests, work.input_len, work.output_len)
    return {task: found[METRICS[task]] for task in ("prefill", "decode")}
