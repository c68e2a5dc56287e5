"""What the fuzzers share: a case is a function of the seed and its number, and can be replayed."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

Case = Callable[[Random], str]
"""Tries something, raises where it finds a fault, and says in a word how it went."""


def run(name: str, case: Case, count: int, seed: int, first: int = 0) -> Counter[str]:
    """How `count` cases went.

    Args:
        name: of the module, for the command that replays a case.
    """
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        try:
            outcomes[case(Random(f"{seed}/{number}"))] += 1
        except BaseException as error:
            error.add_note(f"replay: python -m {name} --seed {seed} --only {number}")
            raise
    return outcomes


def main(name: str, case: Case, usual: int, argv: Sequence[str] | None = None) -> int:
    """The command line of a fuzzer that does `usual` cases if not told otherwise."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}")
    parser.add_argument("--count", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="do the case of this number")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    count, first = (args.count, 0) if args.only is None else (1, args.only)
    outcomes = run(name, case, count, args.seed, first)
    print(f"{name}: {count} cases in {time.monotonic() - begin:.0f} s: {dict(outcomes)}")
    return 0
