"""Node 0's side of Ray: a process that has Ray start the other machines (`quire.ray.nodes`).

Ray ends a process whose Ray node fails, so it has its own, which this one need not survive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import msgspec

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError, QuireError
from quire.system.parent import interrupts_blocked

START_SECONDS = 60.0
"""How long a Ray cluster may take to answer."""
END_SECONDS = 5.0


class Wanted(msgspec.Struct):
    """What Ray shall start.

    Attributes:
        nodes: machines, including this one.
        cpus: of each of them.
        master_addr: address of node 0; empty: the one by which Ray knows it.
        flags: see `ClusterConfig`.
    """

    nodes: int
    cpus: int
    master_addr: str
    master_port: int
    flags: str
    key: str


class Report(msgspec.Struct):
    """What that process says: the address of node 0 first, then at most one error.

    Attributes:
        wrong: whether the configuration is the cause, so that another start would fail as well.
    """

    address: str = ""
    error: str = ""
    fix: str | None = None
    wrong: bool = False

    @classmethod
    def of(cls, error: QuireError, what: str = "") -> Report:
        """Return what is said of an error; `what` precedes it."""
        return cls(error=what + error.what, fix=error.fix, wrong=isinstance(error, ConfigError))

    @property
    def exception(self) -> QuireError:
        kind = ConfigError if self.wrong else EngineDeadError
        return kind(self.error, fix=self.fix)


class Placement:
    """The other machines of an engine, which Ray has chosen.

    Attributes:
        key: a random key for them. Machines of an earlier core have another one.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.key = os.urandom(32).hex().encode()
        where = config.cluster
        self._cluster = where
        address = "" if where.master_addr == ClusterConfig().master_addr else where.master_addr
        self._wanted = Wanted(
            where.nnodes, config.num_threads, address, where.master_port, where.flags,
            self.key.decode(),
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: QuireError | None = None
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)

    def start(self) -> ClusterConfig:
        """Have Ray start the machines; return where they look for node 0.

        Raises:
            ConfigError, EngineDeadError: there is no Ray cluster.
        """
        self._thread.start()
        if not self._known.wait(START_SECONDS):
            self.close()
            raise EngineDeadError(
                f"Ray did not answer within {START_SECONDS:.0f} s.",
                fix="Check `ray status`, and RAY_ADDRESS.",
            )
        if self._failure is not None:
            raise self._failure
        return self._cluster

    def failure(self) -> QuireError | None:
        """Return why the machines cannot start, once that is known."""
        return self._failure

    def close(self) -> None:
        """Stop the machines."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        """Start the process, and read what it says until its end. The system ends it with the
        thread that started it, which is this one."""
        read, write = os.pipe()
        with interrupts_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire.ray.nodes", str(os.getpid()), str(write)],
                stdin=subprocess.PIPE,
                stdout=2,
                bufsize=0,
                pass_fds=(write,),
            )
        os.close(write)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end follows
            self._process.stdin.write(msgspec.json.encode(self._wanted) + b"\n")
        with open(read, "rb") as reports:
            for line in reports:
                self._take(msgspec.json.decode(line, type=Report))
        status = self._process.wait()
        if self._failure is None:
            self._failure = EngineDeadError(
                f"The process that talks to Ray ended with status {status}.",
                fix="See its messages above, and `ray status`.",
            )
        self._known.set()

    def _take(self, report: Report) -> None:
        if report.error:
            self._failure = report.exception
        else:
            self._cluster = replace(self._cluster, master_addr=report.address)
        self._known.set()
