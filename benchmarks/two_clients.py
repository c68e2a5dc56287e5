"""How long a client waits for its tokens while another takes what it can.

    python benchmarks/two_clients.py [--streams 24] [--seconds 20] [the engine's flags]

The first client keeps `--streams` streams running, from 127.0.0.1. By default they hold all seats.
With a large `--prompt-len` they hold the KV blocks, and with `--output-len 1`, too, the tokens of
the steps. The second client sends a short request every `--every` seconds from 127.0.0.2, or one
of `--chat-len` tokens. It is timed alone, and then beside the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import urlopen

from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs

TOKEN = b"data: {"
SHORT = "Once upon a time"
VOCABULARY = 250
"""Token ids of long prompts. The embedded model has more."""


def main() -> int:
    args = _arguments()
    with running_server(args) as url:
        asyncio.run(_timed(url, args, streams=0))  # warms up
        alone = asyncio.run(_timed(url, args, streams=0))
        beside = asyncio.run(_timed(url, args, streams=args.streams))
        preemptions = _preemptions(url)
    result = {
        "streams": args.streams,
        "alone_ttft_s": _percentiles(alone.firsts),
        "beside_ttft_s": _percentiles(beside.firsts),
        "alone_itl_s": _percentiles(alone.gaps),
        "beside_itl_s": _percentiles(beside.gaps),
        "first_client_tok_s": round(beside.tokens / args.seconds, 1),
        "first_client_answers": beside.answers,
        "preemptions": preemptions,
    }
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=24, metavar="N")
    parser.add_argument("--prompt-len", type=int, default=0, metavar="N")
    parser.add_argument("--output-len", type=int, default=800, metavar="N")
    parser.add_argument("--chat-len", type=int, default=0, metavar="N", help="second client's")
    parser.add_argument("--answer-len", type=int, default=4, metavar="N", help="second client's")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S")
    parser.add_argument("--begin", type=float, default=3.0, metavar="S", help="the first's alone")
    parser.add_argument("--every", type=float, default=0.2, metavar="S")
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    EngineArgs.add_cli_args(parser)
    return parser.parse_args()


@dataclass
class Times:
    """The second client's seconds to the first token and between tokens; the first one's work."""

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    answers: int = 0


async def _timed(url: str, args: argparse.Namespace, *, streams: int) -> Times:
    times = Times()
    flood = [asyncio.create_task(_keep_streaming(url, args, times)) for _ in range(streams)]
    await asyncio.sleep(args.begin if streams else 0.0)
    times.tokens = times.answers = 0
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        await _chat(url, _prompt(args.chat_len), args.answer_len, times)
        await asyncio.sleep(args.every)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    return times


async def _keep_streaming(url: str, args: argparse.Namespace, times: Times) -> None:
    """Stream one answer after another, and count their tokens."""
    while True:
        reader, writer = await _post(url, _prompt(args.prompt_len), args.output_len, "127.0.0.1")
        try:
            while line := await reader.readline():
                times.tokens += line.startswith(TOKEN)
            times.answers += 1
        finally:
            writer.close()


def _prompt(length: int) -> str | list[int]:
    return random.choices(range(3, VOCABULARY), k=length) or SHORT


async def _chat(url: str, prompt: str | list[int], max_tokens: int, times: Times) -> None:
    """Note the times of a short answer's tokens."""
    last = begun = time.monotonic()
    reader, writer = await _post(url, prompt, max_tokens, "127.0.0.2")
    while line := await reader.readline():
        if line.startswith(TOKEN):
            now = time.monotonic()
            (times.firsts if last == begun else times.gaps).append(now - last)
            last = now
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def _post(
    url: str, prompt: str | list[int], max_tokens: int, source: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0}
    data = json.dumps(body | {"ignore_eos": True, "stream": True}).encode()
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        address.hostname, address.port, local_addr=(source, 0)
    )
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return reader, writer


def _preemptions(url: str) -> int:
    with urlopen(f"{url}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("vllm:num_preemptions_total"):
                return int(float(line.split()[-1]))
    return 0


def _percentiles(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "count": len(times),
        "p50": round(statistics.median(times), 4),
        "p99": round(times[min(len(times) - 1, int(0.99 * len(times)))], 4),
        "max": round(times[-1], 4),
    }


if __name__ == "__main__":
    sys.exit(main())
