"""A replica of a Ray Serve deployment: `quire serve` in a process, and the way to it.

The process is `python -m quire.ray.replica PARENT FLAGS`; it ends with the replica.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

from quire.core.errors import ConfigError, EngineDeadError
from quire.core.extras import require
from quire.ray.entry import Entry, Head
from quire.ray.scaling import load_in
from quire.system.parent import end_with

STOP_SECONDS = 30.0
"""How long a server may take to stop; Ray Serve has waited for its requests before."""
DRAIN_SECONDS = 600.0
"""How long the requests of a replaced replica may take."""
HEALTH_SECONDS = 5.0
QUEUED = 4096
"""Requests that Ray Serve sends to one replica; Quire's own queue is shorter and answers 429."""
_DEAD = b'"engine_dead"'
_ADDRESS = re.compile(r" on (http://\S+)/v1")
_HOP_BY_HOP = {
    "connection", "content-length", "host", "keep-alive", "proxy-authenticate", "te", "trailer",
    "proxy-authorization", "transfer-encoding", "upgrade",
}  # fmt: skip
_OWN = {"host", "port", "nnodes", "node_rank", "headless", "config", "ssl_certfile"}
"""Flags that do not concern a replica."""


def application(args: Mapping[str, Any]) -> Any:
    """See `quire.ray.build_app`."""
    require("ray", "build_app")
    from ray import serve

    flags = serve_flags(args)
    both = serve.deployment(
        max_ongoing_requests=QUEUED,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
    )
    replicas = both(Replica).options(
        name="Quire", ray_actor_options={"num_cpus": args["num_threads"]}
    )
    entry = both(Entry).options(
        name="Entry", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=2**16
    )
    return entry.bind(replicas.bind(flags))


def serve_flags(args: Mapping[str, Any]) -> list[str]:
    """Return the flags of `quire serve`.

    Raises:
        ConfigError: one is missing, or does not concern a replica.
    """
    given = {name.replace("-", "_"): value for name, value in args.items()}
    for name, value in given.items():
        if name in _OWN or value == "ray":
            raise ConfigError(
                f"{name} is set, and a replica of Ray Serve is one machine that Serve connects.",
                fix="Remove it.",
                param=name,
            )
    if not isinstance(given.get("num_threads"), int):
        raise ConfigError(
            f"num_threads is {given.get('num_threads')}; Ray gives each replica so many CPUs.",
            fix="Set it to the cores of a replica.",
            param="num_threads",
        )
    flags = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, dict):
            flags += [flag, json.dumps(value)]
        else:
            flags += [flag, *map(str, value if isinstance(value, list) else [value])]
    return flags


class Replica:
    """A Quire server, to which Ray Serve's requests go."""

    def __init__(self, flags: list[str]) -> None:
        import aiohttp

        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._stops = False
        self._said: list[str] = []
        self._known = threading.Event()
        threading.Thread(target=self._run, args=(flags,), name="server", daemon=True).start()
        self._known.wait()
        if not self._url:
            raise EngineDeadError("The server did not start: " + "".join(self._said[-20:]))
        self._http = aiohttp.ClientSession(
            self._url,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def answer(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> AsyncIterator[Head | bytes]:
        """Pass a request to the server, and its answer back as it comes."""
        async with self._http.request(
            method, target, headers=_end_to_end(headers), data=body, allow_redirects=False
        ) as answer:
            unready = answer.status == HTTPStatus.SERVICE_UNAVAILABLE
            first = await answer.read() if unready else b""
            if _DEAD in first and not self._stops:
                self._end("engine has stopped")  # it answers fast, and would get all requests
            yield Head(answer.status, _end_to_end(answer.headers.items()))
            if first:
                yield first
            async for part in answer.content.iter_any():
                yield part

    async def check_health(self) -> None:
        """Raise unless the server is ready; Ray Serve replaces a replica that stays unready."""
        async with asyncio.timeout(5.0), self._http.get("/ready") as answer:
            if answer.status != 200:
                raise EngineDeadError(f"/ready answers {answer.status}: {await answer.text()}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load, for `scaling.replicas_wanted`."""
        async with self._http.get("/metrics") as answer:
            return load_in(await answer.text())

    async def __del__(self) -> None:
        self._stops = True
        await self._http.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)

    def _run(self, flags: list[str]) -> None:
        """Start the server, and pass on what it says until its end. The system ends it with the
        thread that started it, which is this one."""
        command = [sys.executable, "-m", "quire.ray.replica", str(os.getpid()), *flags]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)
            if not self._url:
                self._said.append(line)
                if found := _ADDRESS.search(line):
                    self._url = found[1]
                    self._known.set()
        status = self._process.wait()
        if self._url and not self._stops:
            self._end(f"server has ended with status {status}")
        self._known.set()

    def _end(self, what: str) -> None:
        """End the replica, which Ray Serve replaces at once."""
        print(f"This replica's {what}.", file=sys.stderr, flush=True)
        if self._process is not None:
            self._process.kill()
        os._exit(1)


def _end_to_end(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


def main(argv: list[str]) -> int:
    """Run `quire serve` on a free port until its parent ends."""
    end_with(int(argv[0]))
    from quire.cli.main import main as quire

    return quire(["serve", *argv[1:], "--port", "0"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
