"""More load than there are seats for, while the engine core is killed again and again.

    python benchmarks/soak_faults.py [--minutes 15] [--overload 4] [--kill-every 60]

Every prompt's greedy answer is known from before. A stream that ends whole must say exactly that;
one that ends in an error event, the beginning of it: what is missing or said twice is lost or
duplicated. Refusals (429, 503) are asked again. Needs psutil; ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from quire.bench.http_client import ConnectionLostError, HTTPClient, HTTPStatusError, events
from quire.bench.workload import text_prompts

HEALTHY_SECONDS = 5.0
"""The longest that health may take to be restored."""
PROMPTS = 16
REFUSALS = (429, 503)


@dataclass
class Result:
    """What has happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    """Of whole answers, from the request to the last event."""
    restored: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """Resident bytes of the API process, and when."""


class Load:
    """Clients that ask again as soon as they are answered."""

    def __init__(self, url: str, result: Result) -> None:
        self.url = url
        self.result = result
        self.bodies = [
            {"prompt": prompt, "max_tokens": 8 + 8 * (i % 8), "temperature": 0, "ignore_eos": True}
            for i, prompt in enumerate(text_prompts(PROMPTS, 24, [0]))
        ]
        self.expected: list[str] = []

    async def learn(self) -> None:
        client = HTTPClient(self.url)
        for body in self.bodies:
            answer = await client.json("POST", "/v1/completions", body)
            self.expected.append(answer["choices"][0]["text"])
        await client.close()

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
                said = [data for _, data in events(pieces)] if stream else []
                if stream:
                    self.judge(said, self.expected[number])
                else:
                    raw = b"".join(data for _, data in pieces).decode(errors="replace")
                    self.judge_whole(raw, self.expected[number])
            except HTTPStatusError as error:
                kind = "refused" if error.status in REFUSALS else "unexpected"
                self.result.counts[kind] += 1
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
            self.result.counts["refused" if status in REFUSALS else "unexpected"] += 1
            return
        text = json.loads(raw[raw.index("{") : raw.rindex("}") + 1])["choices"][0]["text"]
        self.result.counts["whole" if text == expected else "lost"] += 1


async def kill(api: psutil.Process, url: str, every: float, until: float, result: Result) -> None:
    """Kill the engine core every so often, and see when health is restored."""
    client = HTTPClient(url)
    while (left := until - time.monotonic()) > every + HEALTHY_SECONDS:
        await asyncio.sleep(min(every, left))
        for child in api.children(recursive=True):
            if "quire.engine.process" in child.cmdline():
                child.kill()
        begin = time.monotonic()
        result.counts["faults"] += 1
        down = False
        while time.monotonic() < begin + 12 * HEALTHY_SECONDS:
            try:
                await client.text("GET", "/health")
                if down:
                    break
            except HTTPStatusError:
                down = True
            await asyncio.sleep(0.02)
        result.restored.append(time.monotonic() - begin)
    await client.close()


async def watch(api: psutil.Process, until: float, result: Result) -> None:
    while time.monotonic() < until:
        result.memory.append((time.monotonic(), api.memory_info().rss))
        await asyncio.sleep(1.0)


async def soak(args: argparse.Namespace, api: psutil.Process, url: str) -> dict[str, Any]:
    result = Result()
    load = Load(url, result)
    await load.learn()
    files = api.num_fds()
    until = time.monotonic() + 60 * args.minutes
    clients = args.overload * args.max_num_seqs
    async with asyncio.TaskGroup() as group:
        for seed in range(clients):
            group.create_task(load.ask(until, seed))
        group.create_task(kill(api, url, args.kill_every, until, result))
        group.create_task(watch(api, until, result))
    half = result.memory[len(result.memory) // 2 :]
    moments, sizes = zip(*half, strict=True)
    await asyncio.sleep(2.0)
    return {
        **{name: result.counts[name] for name in ("requests", "faults", "whole", "interrupted")},
        **{name: result.counts[name] for name in ("refused", "unexpected", "lost", "duplicated")},
        "p99_s": float(np.percentile(result.seconds, 99)),
        "restored_s": [round(seconds, 2) for seconds in result.restored],
        "rss_bytes_a_minute": 60 * float(np.polyfit(moments, sizes, 1)[0]),
        "files_before": files,
        "files_after": api.num_fds(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--overload", type=int, default=4, help="clients for each seat")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="S")
    parser.add_argument("--max-num-seqs", type=int, default=8)
    args = parser.parse_args()
    seats = str(args.max_num_seqs)
    queue = str(2 * args.max_num_seqs)
    command = [sys.executable, "-m", "quire.cli.main", "serve", args.model, "--port", "0"]
    command += ["--max-num-seqs", seats, "--max-queued-requests", queue]
    command += ["--num-gpu-blocks-override", "1024"]
    with tempfile.TemporaryFile("w+") as log:
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
            process.wait()
    print(json.dumps(summary, indent=2))
    wrong = summary["lost"] + summary["duplicated"] + summary["unexpected"]
    late = max(summary["restored_s"], default=0.0) > HEALTHY_SECONDS
    return 1 if wrong or late or process.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
