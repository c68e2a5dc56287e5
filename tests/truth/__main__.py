"""Random configurations against Transformers: `python -m tests.truth --count 500 --seed N`."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import torch
import transformers

from tests.truth.choices import ARCHITECTURES, draw
from tests.truth.compare import Outcome, run
from tests.truth.unread import unread

VERDICTS = ("same", "refused", "no oracle", "warned", "near tie", "different", "crashed")


def main() -> int:
    """Run the cases; 1 if Quire differed silently from Transformers, or crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="Configurations. Default: 500.")
    parser.add_argument("--seed", type=int, default=0, help="Draws others. Default: 0.")
    parser.add_argument("--only", type=int, help="Run this one alone, and show it.")
    parser.add_argument("--keys", action="store_true", help="Look for keys that Quire ignores.")
    args = parser.parse_args()
    quiet()
    began = time.monotonic()
    if args.keys:
        ignored = [(kind, key) for kind in ARCHITECTURES for key in unread(kind, args.seed)]
        for kind, key in ignored:
            print(f"{kind} ignores {key}")
        print(f"{len(ARCHITECTURES)} model types in {time.monotonic() - began:.0f} s")
        return int(bool(ignored))
    chosen = range(args.count) if args.only is None else [args.only]
    outcomes = {index: outcome_of(args.seed, index) for index in chosen}
    if args.only is not None:
        print(draw(args.seed, args.only))
    report(args.seed, outcomes)
    print(f"{len(outcomes)} configurations in {time.monotonic() - began:.0f} s")
    return int(any(outcome.failed for outcome in outcomes.values()))


def quiet() -> None:
    """Silence what Transformers warns of; keep torch to one thread."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("quire").setLevel(logging.WARNING)
    torch.set_num_threads(1)


def outcome_of(seed: int, index: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return run(draw(seed, index), Path(folder))


def report(seed: int, outcomes: dict[int, Outcome]) -> None:
    """Print verdicts by architecture, reasons by count, and how to run each failure again."""
    table: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for index, outcome in outcomes.items():
        table[draw(seed, index).kind][outcome.verdict] += 1
    print(f"{'':12}", *(f"{verdict:>10}" for verdict in VERDICTS))
    for kind in (*ARCHITECTURES, "all"):
        counts = sum(table.values(), Counter()) if kind == "all" else table[kind]
        print(f"{kind:12}", *(f"{counts[verdict]:10}" for verdict in VERDICTS))
    for verdict in VERDICTS[1:5]:
        reasons = Counter(o.why for o in outcomes.values() if o.verdict == verdict)
        for why, count in reasons.most_common():
            print(f"{verdict}: {count:4} × {why}")
    for index, outcome in outcomes.items():
        if outcome.failed:
            kind = draw(seed, index).kind
            print(f"{outcome.verdict}: {kind}: {outcome.why}")
            print(f"    python -m tests.truth --seed {seed} --only {index}")


if __name__ == "__main__":
    sys.exit(main())
