"""`quire serve` in a process of its own, and what the tests ask it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import openai

START_SECONDS = 120.0
QUIRE = [sys.executable, "-m", "quire"]


@dataclass
class Server:
    """A running server."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path
    http: httpx.Client

    def complete(self, **fields: Any) -> httpx.Response:
        """A greedy completion of a fixed prompt, unless `fields` say otherwise."""
        body = {"prompt": "once upon", "max_tokens": 8, "temperature": 0, **fields}
        return self.http.post("/v1/completions", json=body)

    def text(self, **fields: Any) -> str:
        response = self.complete(**fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    @cached_property
    def canary(self) -> str:
        """What it says as long as it is unharmed, asked for once."""
        return self.text()

    def openai_client(self) -> openai.OpenAI:
        """OpenAI's own client of it."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def metric(self, name: str, prefix: str = "vllm") -> float:
        """One number of /metrics; sums over labels."""
        return _sum(self.http.get("/metrics").text, f"{prefix}:{name}")

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Wait until no request and no KV block is in use."""
        deadline = time.monotonic() + seconds
        while busy := self._in_use():
            assert time.monotonic() < deadline, f"never idle: {busy}"
            time.sleep(0.05)

    def _in_use(self) -> dict[str, float]:
        text = self.http.get("/metrics").text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return {name: value for name in names if (value := _sum(text, f"vllm:{name}"))}

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(120)


def _sum(metrics: str, name: str) -> float:
    """Sum a metric over its labels: the client library's parser takes 20 ms for the whole text."""
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
    assert values, f"/metrics has no {name}"
    return sum(map(float, values))


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition` holds; fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def serving(
    folder: Path, *flags: str, log_folder: Path | None = None, program: Sequence[str] = QUIRE
) -> Iterator[Server]:
    """Serve the model in `folder` on a free port of this machine, until the end of the block.

    Args:
        log_folder: where its output goes; beside the model by default.
        program: what runs Quire's commands.
    """
    log = (log_folder or folder.parent) / f"serve-{time.monotonic_ns()}.log"
    command = [*program, "serve", str(folder), "--port", "0", "--served-model-name", "tiny", *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = _wait_for_url(process, log)
        with httpx.Client(base_url=url, timeout=60) as http:
            yield Server(url, "tiny", process, log, http)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text()
        if found := re.search(r"on (https?://\S+)/v1", text):
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(f"not serving after {START_SECONDS} s: {log.read_text()}")
