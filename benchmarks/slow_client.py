"""What clients that stop reading cost the others.

    python benchmarks/slow_client.py [--clients 8] [--stalled 4] [the engine's flags]

Streams for `--clients` are timed beside `--stalled` more, which in turn read what they get, and
never do. The engine computes as much for both; the ratio is the others' tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import time
from urllib.parse import urlsplit

from quire.bench.serving.http_client import HTTPClient, events
from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs

PATH = "/v1/completions"
SMALL_BUFFER = 4096
"""Bytes that the kernel takes for a client that does not read."""


def main() -> int:
    args = _arguments()
    with running_server(args) as url:
        asyncio.run(_round(url, args, stalled=False))
        ratios, rates = [], []
        for _ in range(args.repetitions):
            reading = asyncio.run(_round(url, args, stalled=False))
            beside = asyncio.run(_round(url, args, stalled=True))
            rates.append(reading)
            ratios.append(beside / reading)
    result = {
        "clients": args.clients,
        "stalled": args.stalled,
        "output_tok_s": statistics.median(rates),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8, metavar="N")
    parser.add_argument("--stalled", type=int, default=4, metavar="N")
    parser.add_argument("--output-len", type=int, default=256, metavar="N")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    EngineArgs.add_cli_args(parser)
    return parser.parse_args()


async def _round(url: str, args: argparse.Namespace, *, stalled: bool) -> float:
    """Tokens a second of the clients that read, while the others read as well or do not."""
    body = {"prompt": "Once upon a time", "max_tokens": args.output_len, "temperature": 0.0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    idle: list[socket.socket] = []
    readers = [HTTPClient(url) for _ in range(args.clients + (0 if stalled else args.stalled))]
    if stalled:
        idle = [_stalled(url, body) for _ in range(args.stalled)]
    start = time.monotonic()
    answers = await asyncio.gather(*(r.exchange("POST", PATH, body) for r in readers))
    seconds = time.monotonic() - start
    for connection in idle:
        connection.close()
    for reader in readers:
        await reader.close()
    usages = [json.loads([e for _, e in events(a)][-2])["usage"] for a in answers[: args.clients]]
    return sum(int(usage["completion_tokens"]) for usage in usages) / seconds


def _stalled(url: str, body: dict[str, object]) -> socket.socket:
    """A connection with a request on it, and nobody who reads its answer."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.connect((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return connection


if __name__ == "__main__":
    sys.exit(main())
