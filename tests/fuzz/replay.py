"""What the fuzzers share: a case is a function of the seed and its number, and can be replayed."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Case = Callable[[Random], str]
"""Tries something, raises where it finds a fault, and says in a word how it went."""


def run(
    name: str, case: Case, count: int, seed: int, first: int = 0, current: Any = None
) -> Counter[str]:
    """How `count` cases went.

    Args:
        name: of the module, for the command that replays a case.
        current: a shared number, set to that of each case.
    """
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        if current is not None:
            current.value = number
        try:
            outcomes[case(Random(f"{seed}/{number}"))] += 1
        except BaseException as error:
            error.add_note(replay_command(name, seed, number))
            raise
    return outcomes


def replay_command(name: str, seed: int, number: int) -> str:
    return f"replay: python -m {name} --seed {seed} --only {number}"


def main(name: str, case: Case, usual: int, argv: Sequence[str] | None = None) -> int:
    """The command line of a fuzzer that does `usual` cases if not told otherwise.

    They run in another process: a fault of native code ends it, and is told of here.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}")
    parser.add_argument("--count", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="do the case of this number")
    args = parser.parse_args(argv)
    count, first = (args.count, 0) if args.only is None else (1, args.only)

    def work() -> None:
        begin = time.monotonic()
        outcomes = run(name, case, count, args.seed, first, current)
        print(f"{name}: {count} cases in {time.monotonic() - begin:.0f} s: {dict(outcomes)}")

    fork = multiprocessing.get_context("fork")
    current = fork.Value("q", first, lock=False)
    process = fork.Process(target=work)
    process.start()
    process.join()
    status = process.exitcode or 0
    if status < 0:
        ended = signal.Signals(-status).name
        print(f"{ended}: {replay_command(name, args.seed, current.value)}", file=sys.stderr)
    return abs(status)
