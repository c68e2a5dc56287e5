"""What somebody who watches costs those who are served.

    python benchmarks/dashboard.py [--clients 8] [--viewers 1] [--explain] [the engine's flags]

Rounds of streams take turns with and without `--viewers` connections to the dashboard's stream, or
with --explain clients that ask `GET /explain?window=5` again and again;
`ratio` is the tokens a second of the watched rounds over those of the others, the median of
neighbours. Each request stays in the picture for a minute, so that later snapshots are larger.
`cpu_share` needs no luck: the CPU seconds a second that the server's processes take for the viewers
right after the rounds, while nothing else happens and all of their requests are in the picture.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from quire.bench.serving.http_client import HTTPClient
from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs


def main() -> int:
    args = _arguments()
    with running_server(args) as url:
        result = asyncio.run(_measure(url, args))
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8, metavar="N")
    parser.add_argument("--viewers", type=int, default=1, metavar="N")
    parser.add_argument("--explain", action="store_true", help="watch by GET /explain")
    parser.add_argument("--output-len", type=int, default=256, metavar="N")
    parser.add_argument("--repetitions", type=int, default=9, metavar="N")
    parser.add_argument("--idle-seconds", type=float, default=15.0, metavar="S")
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    EngineArgs.add_cli_args(parser)
    return parser.parse_args()


class _Watched:
    """What viewers have got."""

    def __init__(self, explain: bool) -> None:
        self._path = "/explain?window=5" if explain else "/dashboard/stream"
        self.answers = self.snapshots = 0
        self.num_bytes = 0

    @asynccontextmanager
    async def by(self, viewers: int, url: str) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._watch(url)) for _ in range(viewers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, url: str) -> None:
        where = urlsplit(url)
        asked = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        while True:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            try:
                writer.write(asked.encode())
                while data := await reader.read(2**16):
                    self.num_bytes += len(data)
                    self.snapshots += data.count(b"event: snapshot\n")
                self.answers += 1
            finally:
                writer.close()


async def _measure(url: str, args: argparse.Namespace) -> dict[str, object]:
    await _round(url, args)
    watched = _Watched(args.explain)
    rates: list[float] = []
    ratios: list[float] = []
    for repetition in range(args.repetitions):
        pair = [0.0, 0.0]
        # Who goes first takes turns too: the machine's mood has a trend.
        for viewed in (repetition % 2, 1 - repetition % 2):
            async with watched.by(args.viewers * viewed, url):
                pair[viewed] = await _round(url, args)
        rates.append(pair[0])
        ratios.append(pair[1] / pair[0])
    idle = await _cpu_share(args.idle_seconds)
    async with watched.by(args.viewers, url):
        shown = await _cpu_share(args.idle_seconds)
    return {
        "clients": args.clients,
        "viewers": args.viewers,
        "snapshots": watched.snapshots,
        "answers": watched.answers,
        "bytes_a_snapshot": round(watched.num_bytes / max(watched.snapshots, 1)),
        "output_tok_s": statistics.median(rates),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_share": shown - idle,
    }


async def _cpu_share(seconds: float) -> float:
    """CPU seconds a second of this process's descendants."""
    start, before = time.monotonic(), _cpu_seconds()
    await asyncio.sleep(seconds)
    return (_cpu_seconds() - before) / (time.monotonic() - start)


def _cpu_seconds() -> float:
    """Of all processes below this one, since they began."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            spent[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_below(pid: int) -> bool:
        parent = parents.get(pid, 0)
        return parent == os.getpid() or (parent > 1 and is_below(parent))

    return sum(seconds for pid, seconds in spent.items() if is_below(pid))


async def _round(url: str, args: argparse.Namespace) -> float:
    """Tokens a second of all clients."""
    body = {"prompt": "Once upon a time", "max_tokens": args.output_len, "temperature": 0.0}
    body |= {"ignore_eos": True, "stream": True}
    clients = [HTTPClient(url) for _ in range(args.clients)]
    start = time.monotonic()
    await asyncio.gather(*(c.exchange("POST", "/v1/completions", body) for c in clients))
    seconds = time.monotonic() - start
    for client in clients:
        await client.close()
    return args.clients * args.output_len / seconds


if __name__ == "__main__":
    raise SystemExit(main())
