"""Many random worlds on all cores: `python -m tests.simulation.soak --seeds 200000`.

A failing seed is printed as soon as it is found, with the command that replays it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import count, islice
from multiprocessing import get_context

from tests.simulation.executor import ViolationError
from tests.simulation.world import has_states, run_world

SEEDS = 200_000
CHUNK = 50
"""Seeds that a process takes at once."""
REPORT_SECONDS = 10.0


def failure(seed: int) -> tuple[int, str | None]:
    """The seed, and what went wrong in its world."""
    try:
        run_world(seed)
    except (Exception, ViolationError) as error:
        return seed, f"{type(error).__name__}: {error}"
    return seed, None


def soak(seeds: Sequence[int], jobs: int) -> list[int]:
    """Run the worlds of some seeds; those that failed, in order."""
    failed: list[int] = []
    begin = told = time.monotonic()
    # Steps that fail are part of the worlds, and not to be told of one by one.
    with get_context("spawn").Pool(jobs, logging.disable, (logging.ERROR,)) as pool:
        for done, (seed, error) in enumerate(pool.imap_unordered(failure, seeds, CHUNK), 1):
            if error is not None:
                failed.append(seed)
                print(f"seed {seed}: {error}\n  replay: {replay_command(seed)}", flush=True)
            now = time.monotonic()
            if now - told > REPORT_SECONDS:
                told = now
                rate = done / (now - begin)
                print(
                    f"{done} of {len(seeds)} worlds, {len(failed)} failed, {rate:.0f} a second, "
                    f"{(len(seeds) - done) / rate:.0f} s to go",
                    flush=True,
                )
    return sorted(failed)


def replay_command(seed: int) -> str:
    return f"python -m tests.simulation.soak --seed {seed}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="replay this one, with its traceback")
    parser.add_argument("--states", action="store_true", help="only worlds with recurrent layers")
    args = parser.parse_args(argv)
    if args.seed is not None:
        try:
            run_world(args.seed)
        except (Exception, ViolationError):
            traceback.print_exc()
            return 1
        print(f"seed {args.seed}: all is well")
        return 0
    begin = time.monotonic()
    chosen = filter(has_states, count(args.first)) if args.states else count(args.first)
    seeds = list(islice(chosen, args.seeds))
    failed = soak(seeds, args.jobs)
    seconds = time.monotonic() - begin
    print(
        f"{len(seeds)} worlds up to seed {seeds[-1]} in {seconds:.0f} s: "
        f"{len(failed)} failed {failed[:20] or ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
