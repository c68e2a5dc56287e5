"""More load than there are seats for, rude clients beside it, and an engine core that is killed
and stopped again and again.

    python benchmarks/soak_faults.py [--minutes 15] [--overload 4] [--kill-every 60]

Every prompt's answer, greedy or seeded, is known from before. A stream that ends whole must say
exactly that; one that ends in an error event, the beginning of it: what is missing or said twice is
lost or duplicated. Refusals (429, 503) are asked again. Beside that load clients leave their
streams, read them slowly, send what is no request, and break off uploads. Needs psutil; ends with
1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from quire.bench.http_client import ConnectionLostError, HTTPClient, HTTPStatusError, events
from quire.bench.workload import text_prompts

HEALTHY_SECONDS = 5.0
"""The longest that health may take to be restored."""
STEP_TIMEOUT = 5
"""Seconds after which a core that is stopped counts as stuck."""
SLOPE_BYTES = 2**20
"""That the API process may seem to gain a minute: what is fitted to a short run is no zero."""
PROMPTS = 16
REFUSALS = (429, 503)
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MALFORMED = [
    b'{"prompt": "a',
    b'{"prompt": "a", "temprature": 1}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": [1, 99999999]}',
    b'{"prompt": "a", "guided_grammar": "root ::= ((("}',
    b"[" * 100_000,
    b"\xff\xfe",
]


@dataclass
class Result:
    """What has happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    strange: Counter[str] = field(default_factory=Counter)
    """What was not expected."""
    seconds: list[float] = field(default_factory=list)
    """Of whole answers, from the request to the last event."""
    restored: dict[str, list[float]] = field(default_factory=lambda: {"killed": [], "stopped": []})
    """Seconds until health was there again: after a kill, and after a stop was noticed."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Resident bytes of the API process, and when."""


class Load:
    """Clients that ask again as soon as they are answered."""

    def __init__(self, url: str, result: Result) -> None:
        self.url = url
        self.result = result
        self.bodies: list[dict[str, Any]] = [
            {
                "prompt": prompt,
                "max_tokens": 8 + 8 * (i % 8),
                "temperature": i % 2,
                "seed": i,
                "ignore_eos": True,
            }
            for i, prompt in enumerate(text_prompts(PROMPTS, 24, [0]))
        ]
        self.expected: list[str] = []

    async def learn(self) -> None:
        self.expected = await self.answers()

    async def answers(self) -> list[str]:
        """What every prompt is answered, one after the other."""
        client = HTTPClient(self.url)
        answers = [await client.json("POST", "/v1/completions", body) for body in self.bodies]
        await client.close()
        return [answer["choices"][0]["text"] for answer in answers]

    async def ask(self, until: float, seed: int) -> None:
        """One client, until this moment."""
        draw = random.Random(seed)
        client = HTTPClient(self.url)
        while (begin := time.monotonic()) < until:
            number = draw.randrange(PROMPTS)
            stream = draw.random() < 0.7
            body = {**self.bodies[number], "stream": stream}
            self.result.counts["requests"] += 1
            try:
                pieces = await client.exchange("POST", "/v1/completions", body)
                if stream:
                    self.judge([data for _, data in events(pieces)], self.expected[number])
                else:
                    raw = b"".join(data for _, data in pieces).decode(errors="replace")
                    self.judge_whole(raw, self.expected[number])
            except HTTPStatusError as error:
                self.refused(error.status)
                await asyncio.sleep(draw.uniform(0.05, 0.2))
            except (ConnectionLostError, OSError):
                self.result.counts["lost"] += 1
            else:
                self.result.seconds.append(time.monotonic() - begin)
        await client.close()

    def judge(self, said: list[str], expected: str) -> None:
        messages = [json.loads(data) for data in said if data != "[DONE]"]
        text = "".join(m["choices"][0]["text"] for m in messages if m.get("choices"))
        interrupted = any("error" in message for message in messages)
        if not said or said[-1] != "[DONE]":
            self.result.counts["lost"] += 1
        elif interrupted:
            self.result.counts["interrupted"] += 1
            self.result.counts["duplicated"] += not expected.startswith(text)
        elif text == expected:
            self.result.counts["whole"] += 1
        else:
            self.result.counts["lost" if len(text) < len(expected) else "duplicated"] += 1

    def judge_whole(self, raw: str, expected: str) -> None:
        status = int(raw.split(" ", 2)[1])
        if status != 200:
            self.refused(status)
            return
        text = json.loads(raw[raw.index("{") : raw.rindex("}") + 1])["choices"][0]["text"]
        self.result.counts["whole" if text == expected else "lost"] += 1

    def refused(self, status: int) -> None:
        if status in REFUSALS:
            self.result.counts["refused"] += 1
        else:
            self.result.strange[f"HTTP {status}"] += 1


class RudeClients:
    """Each method is a client that does one kind of wrong, once."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.result = load.result

    async def run(self, until: float, seed: int) -> None:
        """Do wrong in turns until this moment."""
        draw = random.Random(seed)
        kinds = itertools.cycle((self.leave, self.read_slowly, self.send_nonsense, self.break_off))
        while time.monotonic() < until:
            await asyncio.sleep(draw.uniform(0.2, 0.6))
            kind = next(kinds)
            try:
                await kind(draw)
            except OSError as error:
                self.result.strange[f"{kind.__name__}: {error!r}"] += 1

    async def leave(self, draw: random.Random) -> None:
        """Leave a stream after its first bytes."""
        reader, writer = await self._send(self._request(draw.randrange(PROMPTS), stream=True))
        await reader.read(draw.choice([1, 300, 2000]))
        self._drop(writer, "left")

    async def read_slowly(self, draw: random.Random) -> None:
        """Read a stream in small pieces; all of it must come nevertheless."""
        number = draw.randrange(PROMPTS)
        reader, writer = await self._send(self._request(number, stream=True))
        data = await reader.readline()
        status = int(data.split()[1])
        if status == 200:
            while not data.endswith(b"0\r\n\r\n") and (piece := await reader.read(200)):
                data += piece
                await asyncio.sleep(0.02)
            self.load.judge([said for _, said in events([(0.0, data)])], self.load.expected[number])
        else:
            self.load.refused(status)
        self._drop(writer, "read_slowly")

    async def send_nonsense(self, draw: random.Random) -> None:
        """Send what is no request; it must be refused."""
        body = draw.choice(MALFORMED)
        reader, writer = await self._send(
            HEAD.encode(), b"Content-Length: %d\r\n\r\n" % len(body), body
        )
        status = int((await reader.readline()).split()[1])
        if not (400 <= status < 500 or status == 503):
            self.result.strange[f"HTTP {status} for {body[:50]!r}"] += 1
        self._drop(writer, "malformed")

    async def break_off(self, draw: random.Random) -> None:
        """Announce a megabyte, and leave after a part of it."""
        part = b'{"prompt": "' + b"a" * draw.randrange(200_000)
        _, writer = await self._send(HEAD.encode(), b"Content-Length: 1000000\r\n\r\n", part)
        self._drop(writer, "broken_off")

    def _request(self, number: int, *, stream: bool) -> bytes:
        body = json.dumps({**self.load.bodies[number], "stream": stream}).encode()
        return HEAD.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def _send(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(self.load.url)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (url.hostname, url.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(b"".join(parts))
        return reader, writer

    def _drop(self, writer: asyncio.StreamWriter, kind: str) -> None:
        writer.transport.abort()
        self.result.counts[kind] += 1


def core_of(api: psutil.Process) -> psutil.Process:
    """The engine core's process; the younger one, if there is one, stands by."""
    cores = [p for p in api.children() if "quire.engine.process" in p.cmdline()]
    return min(cores, key=psutil.Process.create_time)


async def break_core(
    args: argparse.Namespace, api: psutil.Process, url: str, until: float, result: Result
) -> None:
    """Kill or stop the engine core every so often, and see when health is restored."""
    client, every = HTTPClient(url), args.kill_every
    for number in itertools.count(1):
        if time.monotonic() + every + STEP_TIMEOUT + 2 * HEALTHY_SECONDS > until:
            break
        await asyncio.sleep(every)
        core = core_of(api)
        kind = "killed" if number % args.stop_each else "stopped"
        if kind == "killed":
            core.kill()
        else:
            core.suspend()
        begin = time.monotonic()
        result.counts[kind] += 1
        down = False
        while time.monotonic() < begin + 12 * HEALTHY_SECONDS:
            try:
                await client.text("GET", "/health")
                if down:
                    break
            except HTTPStatusError:
                if not down and kind == "stopped":
                    begin = time.monotonic()
                down = True
            await asyncio.sleep(0.01)
        result.restored[kind].append(round(time.monotonic() - begin, 2))
    await client.close()


async def watch(api: psutil.Process, until: float, result: Result) -> None:
    while time.monotonic() < until:
        result.memory.append((time.monotonic(), api.memory_info().rss))
        await asyncio.sleep(1.0)


async def held(url: str) -> float:
    """Requests and the share of KV blocks in use, once nobody asks; 0 is nothing."""
    client = HTTPClient(url)
    for _ in range(100):
        text = await client.text("GET", "/metrics")
        found = re.findall(
            r"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)\S* (\S+)",
            text,
            re.MULTILINE,
        )
        left = sum(map(float, found))
        if found and not left:
            break
        await asyncio.sleep(0.1)
    await client.close()
    return left


async def soak(args: argparse.Namespace, api: psutil.Process, url: str) -> dict[str, Any]:
    result = Result()
    load = Load(url, result)
    await load.learn()
    files = api.num_fds()
    until = time.monotonic() + 60 * args.minutes
    async with asyncio.TaskGroup() as group:
        for seed in range(args.overload * args.max_num_seqs):
            group.create_task(load.ask(until, seed))
        for seed in range(args.rude):
            group.create_task(RudeClients(load).run(until, seed))
        group.create_task(break_core(args, api, url, until, result))
        group.create_task(watch(api, until, result))
    left = await held(url)
    unharmed = await load.answers() == load.expected
    await asyncio.sleep(2.0)
    moments, sizes = zip(*result.memory[len(result.memory) // 2 :], strict=True)
    kinds = ("killed", "stopped", "left", "read_slowly", "malformed", "broken_off")
    outcomes = ("whole", "interrupted", "refused", "lost", "duplicated")
    return {
        "minutes": args.minutes,
        "requests": result.counts["requests"],
        "faults": {kind: result.counts[kind] for kind in kinds},
        **{name: result.counts[name] for name in outcomes},
        "unexpected": dict(result.strange),
        "p50_s": float(np.percentile(result.seconds, 50)),
        "p99_s": float(np.percentile(result.seconds, 99)),
        "restored_s": result.restored,
        "rss_bytes": sizes[-1],
        "rss_bytes_a_minute": 60 * float(np.polyfit(moments, sizes, 1)[0]),
        "files_before": files,
        "files_after": api.num_fds(),
        "left_in_use": left,
        "canary_unharmed": unharmed,
    }


def missed(summary: dict[str, Any]) -> list[str]:
    """The bars that are not met."""
    restored = [*summary["restored_s"]["killed"], *summary["restored_s"]["stopped"]]
    bars = {
        "lost": summary["lost"] == 0,
        "duplicated": summary["duplicated"] == 0,
        "unexpected": not summary["unexpected"],
        "restored_s": max(restored, default=0.0) <= HEALTHY_SECONDS,
        "rss_bytes_a_minute": summary["minutes"] < 5 or summary["rss_bytes_a_minute"] < SLOPE_BYTES,
        "files_after": summary["files_after"] <= summary["files_before"] + 16,
        "left_in_use": summary["left_in_use"] == 0,
        "canary_unharmed": summary["canary_unharmed"],
        "exit_status": summary["exit_status"] == 0,
    }
    return [name for name, met in bars.items() if not met]


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--overload", type=int, default=4, help="clients for each seat")
    parser.add_argument("--rude", type=int, default=4, help="rude clients beside them")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="S")
    parser.add_argument(
        "--stop-each", type=int, default=4, metavar="N", help="stop it instead each Nth time"
    )
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--log", help="keep the server's log in this file")
    args = parser.parse_args()
    command = [sys.executable, "-m", "quire.cli.main", "serve", args.model, "--port", "0"]
    command += ["--max-num-seqs", str(args.max_num_seqs)]
    command += ["--max-queued-requests", str(2 * args.max_num_seqs)]
    command += ["--num-gpu-blocks-override", "1024", "--step-timeout", str(STEP_TIMEOUT)]
    with open(args.log, "a+") if args.log else tempfile.TemporaryFile("a+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            found = None
            while not found:
                time.sleep(0.1)
                log.seek(0)
                text = log.read()
                found = re.search(r"on (http://\S+)/v1", text)
                if process.poll() is not None:
                    print(text, file=sys.stderr)
                    return 2
            summary = asyncio.run(soak(args, psutil.Process(process.pid), found[1]))
        finally:
            process.terminate()
            status = process.wait()
    summary["exit_status"] = status
    summary["missed"] = missed(summary)
    print(json.dumps(summary, indent=2))
    return 1 if summary["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
