"""Requests to a Ray Serve deployment whose replicas are killed and updated.

    python benchmarks/ray_serve.py [--minutes 10] [--kill-every 60] [--json FILE.jsonl]

Starts Ray here, and replicas of the embedded model. Servers and Ray actors of replicas are killed
in turn. In the middle all replicas are replaced, because a flag has changed. About half of the
requests are streams. Each must have the text that it had before: whole, or for a stream that had
begun, a beginning of it and then an error event. Needs `quire[ray]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json

QUESTIONS = 24
PROMPTS = ("Once upon a time", "One day a girl", "The dog saw", "There was a cat")
START_SECONDS = 120.0


def main() -> int:
    args = _arguments()
    import ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # An update starts new replicas before it ends the old ones.
    ray.init(num_cpus=2 * args.replicas, include_dashboard=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        result = asyncio.run(_run(f"http://127.0.0.1:{port}", args))
        serve.shutdown()
    finally:
        ray.shutdown()
    print(json.dumps(result, indent=2))
    if args.json is not None:
        write_json(args.json, result | circumstances("ray_serve", "python benchmarks/ray_serve.py"))
    return int(result["lost"] + result["wrong"] > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="S")
    parser.add_argument("--replicas", type=int, default=2, metavar="N")
    parser.add_argument("--clients", type=int, default=4, metavar="N")
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    return parser.parse_args()


def _deploy(replicas: int, **flags: Any) -> None:
    """Have Ray Serve start the replicas, or replace them; what `serve deploy` does."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    args = {"model": "embedded", "num_threads": 1, "num_gpu_blocks_override": 512, **flags}
    app = {
        "name": "quire",
        "route_prefix": "/",
        "import_path": "quire.ray:build_app",
        "args": args,
        "deployments": [{"name": "Quire", "num_replicas": replicas}],
    }
    schema = ServeDeploySchema.model_validate({"applications": [app]})
    _get_global_client().deploy_apps(schema)


def _servers() -> list[psutil.Process]:
    """Return the processes of the replicas' servers."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if "quire.ray.replica" in (one.info["cmdline"] or [])]


def _bodies() -> Iterator[dict[str, Any]]:
    """Yield the questions; every second one is sampled."""
    for number in range(QUESTIONS):
        yield {
            "model": "embedded",
            "prompt": f"{PROMPTS[number % len(PROMPTS)]} number {number}",
            "max_tokens": 64 + 4 * number,
            "temperature": number % 2,
            "seed": number,
            "ignore_eos": True,
        }


async def _run(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Send requests for as long as is asked for, while replicas end; return what became of them."""
    _deploy(args.replicas, max_num_seqs=8)
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await _until_ready(http)
        load = _Load(http)
        for body in _bodies():
            load.expected.append(await _ask(http, body))
        deadline = time.monotonic() + 60 * args.minutes
        clients = [load.send(number, deadline) for number in range(args.clients)]
        killed, _ = await asyncio.gather(_kill(args, deadline), asyncio.gather(*clients))
    return {
        "minutes": args.minutes,
        "replicas": args.replicas,
        "num_clients": args.clients,
        "killed": killed,
        "updates": 1,
        "requests": load.outcomes.total(),
        **{kind: load.outcomes[kind] for kind in ("whole", "error_event", "lost", "wrong")},
        "slowest_s": round(load.slowest, 2),
        "why": load.why,
    }


async def _until_ready(http: httpx.AsyncClient) -> None:
    end = time.monotonic() + START_SECONDS
    while (await http.get("/ready")).status_code != httpx.codes.OK:
        if time.monotonic() > end:
            raise TimeoutError(f"no replica is ready after {START_SECONDS:.0f} s")
        await asyncio.sleep(0.5)


async def _ask(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/v1/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def _kill(args: argparse.Namespace, deadline: float) -> int:
    """Kill servers and actors in turn, and replace all replicas in the middle; return how many
    were killed."""
    half = time.monotonic() + 30 * args.minutes
    killed, updated, draw = 0, False, random.Random(0)
    while time.monotonic() < deadline - args.kill_every:
        await asyncio.sleep(args.kill_every)
        if not updated and time.monotonic() > half:
            updated = True
            await asyncio.to_thread(_deploy, args.replicas, max_num_seqs=7)
        server = draw.choice(_servers())
        process = server if killed % 2 else server.parent()
        assert process is not None
        process.kill()
        killed += 1
    return killed


class _Load:
    """Requests, and what became of them."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._bodies = list(_bodies())
        self.expected: list[str] = []
        self.outcomes = Counter[str]()
        self.why: list[str] = []
        self.slowest = 0.0

    async def send(self, client: int, deadline: float) -> None:
        """Send one request after the other until `deadline`."""
        draw = random.Random(client)
        while (began := time.monotonic()) < deadline:
            number = draw.randrange(QUESTIONS)
            try:
                outcome = await self._outcome(number, stream=draw.random() < 0.5)
            except httpx.HTTPError as error:
                outcome = self._lost(f"{type(error).__name__}: {error}")
            self.outcomes[outcome] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    async def _outcome(self, number: int, *, stream: bool) -> str:
        body, expected = self._bodies[number], self.expected[number]
        if not stream:
            answer = await self._http.post("/v1/completions", json=body)
            if answer.status_code != httpx.codes.OK:
                return self._lost(f"{answer.status_code}: {answer.text[:200]}")
            return "whole" if answer.json()["choices"][0]["text"] == expected else "wrong"
        text, failed, done = "", False, False
        sent = self._http.stream("POST", "/v1/completions", json=body | {"stream": True})
        async with sent as answer:
            if answer.status_code != httpx.codes.OK:
                return self._lost(f"{answer.status_code} of a stream")
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    done = True
                elif data and "error" in (event := json.loads(data)):
                    failed = True
                elif data:
                    text += event["choices"][0]["text"]
        if done and not failed:
            return "whole" if text == expected else "wrong"
        if failed:
            return "error_event" if expected.startswith(text) else "wrong"
        return self._lost("a stream broke off")

    def _lost(self, why: str) -> str:
        if why not in self.why:
            self.why.append(why)
        return "lost"


if __name__ == "__main__":
    sys.exit(main())
