"""How long requests with a field at its limit hold up the event loop.

    python -m benchmarks.loop_turns [--rounds N] [--json FILE] [FIELD ...]

Sends each request of tests/faults/full_requests.py to the application, which serves a model without
weights in this process. Prints the longest callback of the loop for each, in CPU milliseconds of
its thread, best of N rounds: a page fault or a cold cache makes a turn long at times. Needs the
development tools; ends with 1 if a turn is longer than the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from asyncio.events import Handle
from typing import Any

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from tests.faults.full_requests import FIELDS, ask
from tests.faults.test_connections import site

BAR_MS = 50.0
"""No client waits longer for the turn under way."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fields", nargs="*", default=list(FIELDS), help="default: all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    turns = {name: asyncio.run(longest_turn(name, args.rounds)) for name in args.fields}
    for name, milliseconds in turns.items():
        print(f"{milliseconds:8.1f} ms  {name}")
    print(f"{max(turns.values()):8.1f} ms  longest; the bar is {BAR_MS:.0f} ms")
    if args.json:
        row: dict[str, Any] = {
            "rounds": args.rounds,
            "bar_ms": BAR_MS,
            "longest_ms": round(max(turns.values()), 2),
            "turn_ms": {name: round(ms, 2) for name, ms in turns.items()},
        }
        command = "python -m benchmarks.loop_turns"
        write_json(args.json, [row | circumstances("loop_turns", command)])
    sys.exit(max(turns.values()) > BAR_MS)


async def longest_turn(name: str, rounds: int) -> float:
    """Return the longest callback while the loop serves the request, in ms, best of `rounds`."""
    path, fields = FIELDS[name]
    body = json.dumps(fields, ensure_ascii=False).encode()
    longest: list[float] = []
    run = Handle._run

    def timed(handle: Handle) -> None:
        begin = time.thread_time()
        run(handle)
        longest[-1] = max(longest[-1], time.thread_time() - begin)

    async with site() as where:
        await ask(where, path, b'{"model": "no"}')  # the first request imports modules
        gc.collect()
        gc.freeze()  # as the server does
        try:
            Handle._run = timed  # type: ignore[method-assign]
            for _ in range(rounds):
                longest.append(0.0)
                status = await ask(where, path, body)
                assert status in (200, 400), f"{name}: {status}"
        finally:
            Handle._run = run  # type: ignore[method-assign]
            gc.unfreeze()
    return 1000 * min(longest)


if __name__ == "__main__":
    main()
