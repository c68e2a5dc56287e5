"""How long a client waits for its first token while another holds all seats.

    python benchmarks/two_clients.py [--streams 24] [--seconds 20] [the engine's flags]

The first client keeps `--streams` long streams running, from 127.0.0.1. The second sends a short
request every `--every` seconds from 127.0.0.2. It is timed alone, and then beside the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import urlopen

from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs

TOKEN = b"data: {"


def main() -> int:
    args = _arguments()
    with running_server(args) as url:
        asyncio.run(_timed(url, args, streams=0))  # warms up
        alone, _ = asyncio.run(_timed(url, args, streams=0))
        beside, tokens = asyncio.run(_timed(url, args, streams=args.streams))
        preemptions = _preemptions(url)
    result = {
        "streams": args.streams,
        "alone_ttft_s": _percentiles(alone),
        "beside_ttft_s": _percentiles(beside),
        "first_client_tok_s": round(tokens / args.seconds, 1),
        "preemptions": preemptions,
    }
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=24, metavar="N")
    parser.add_argument("--output-len", type=int, default=800, metavar="N")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S")
    parser.add_argument("--every", type=float, default=0.2, metavar="S")
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    EngineArgs.add_cli_args(parser)
    return parser.parse_args()


async def _timed(url: str, args: argparse.Namespace, *, streams: int) -> tuple[list[float], int]:
    """Return the second client's times to the first token, and the first one's tokens."""
    counts = [0]
    flood = [
        asyncio.create_task(_keep_streaming(url, args.output_len, counts)) for _ in range(streams)
    ]
    while counts[0] < 4 * streams:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    counts[0], times = 0, list[float]()
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        times.append(await _first_token(url))
        await asyncio.sleep(args.every)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    return times, counts[0]


async def _keep_streaming(url: str, output_len: int, counts: list[int]) -> None:
    """Stream one answer after another, and count their tokens."""
    while True:
        reader, writer = await _post(url, output_len, "127.0.0.1")
        try:
            while line := await reader.readline():
                counts[0] += line.startswith(TOKEN)
        finally:
            writer.close()


async def _first_token(url: str) -> float:
    """Return the seconds until the first token of a short answer, which is read to its end."""
    begun = time.monotonic()
    reader, writer = await _post(url, 4, "127.0.0.2")
    taken = 0.0
    while line := await reader.readline():
        if line.startswith(TOKEN) and not taken:
            taken = time.monotonic() - begun
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return taken


async def _post(
    url: str, max_tokens: int, source: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = {"prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0.0}
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
