"""Edit the rooms that decide tokens, one small mistake at a time, and see whether tests notice.

    python -m tools.mutants                       # a sample of `--count` edits
    python -m tools.mutants --all                 # every edit
    python -m tools.mutants --only kv/manager.py  # every edit of a file
    python -m tools.mutants --only kv/manager.py:95#2

The working tree stays as it is. An edit that no test notices is printed as a diff. Those that
change nothing a test could see are in `equivalent.toml`, each with its reason.
"""

import argparse
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from re import fullmatch, sub

from tools.mutants.children import Verdict
from tools.mutants.edits import Edit, edits_of
from tools.mutants.judge import PACKAGE, ROOMS, ROOT, judge

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
LEAST = 0.95
"""Part of the edits that must be noticed."""


def all_edits() -> list[Edit]:
    """Every edit of the rooms, in the order of files and lines."""
    files = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py"))]
    return [
        edit
        for path in files
        for edit in edits_of(path.relative_to(PACKAGE).as_posix(), path.read_bytes())
    ]


def keys(edits: Sequence[Edit]) -> dict[tuple[str, str], Edit]:
    """All edits by what `equivalent.toml` calls them: file and scope, and the outcome, without
    line numbers. The second one of the same outcome in a scope ends with "(2)"."""
    seen = Counter[tuple[str, str]]()
    found = {}
    for edit in edits:
        lines = f"drop {edit.before}" if edit.text == "pass" else edit.after
        where, becomes = f"{edit.path} {edit.scope}", _plain(lines)
        seen[where, becomes] += 1
        number = seen[where, becomes]
        found[where, f"{becomes} ({number})" if number > 1 else becomes] = edit
    return found


def equivalents() -> dict[tuple[str, str], str]:
    """By key, why the edit changes nothing that a test could see."""
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(e["where"], _plain(e["becomes"])): e["why"] for e in entries}


def _plain(lines: str) -> str:
    """Return code in one line, without its comments."""
    return " ".join(" ".join(sub(r"  ?# .*", "", line) for line in lines.splitlines()).split())


def diff(edit: Edit) -> str:
    lines = [f"--- {edit.name}  {edit.scope}"]
    lines += [f"-{line}" for line in edit.before.splitlines()]
    lines += [f"+{line}" for line in edit.after.splitlines()]
    return "\n".join([*lines, f"  replay: python -m tools.mutants --only '{edit.name}'"])


def table(rows: dict[str, Counter[str]]) -> str:
    columns = ("caught", "survived", "equivalent")
    lines = [f"{'file':28}" + "".join(f"{name:>12}" for name in columns)]
    for path, counts in [*rows.items(), ("all", sum(rows.values(), Counter[str]()))]:
        lines.append(f"{path:28}" + "".join(f"{counts[name]:12}" for name in columns))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=300, help="edits to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--all", action="store_true", help="try every edit")
    parser.add_argument("--only", default="", help="try those of a file or a name (a regex)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="tell which test caught each")
    args = parser.parse_args(argv)
    os.chdir(ROOT)
    edits, known = all_edits(), equivalents()
    by_key = keys(edits)
    if stale := known.keys() - by_key.keys():
        sys.exit(f"equivalent.toml names edits that do not exist: {sorted(stale)}")
    same = {by_key[name].name for name in known}
    if args.only:
        edits = [edit for edit in edits if fullmatch(f"{args.only}(:.*)?", edit.name)]
    elif not args.all:
        edits = random.Random(args.seed).sample(edits, min(args.count, len(edits)))
    equal = [edit for edit in edits if edit.name in same and edit.name != args.only]
    rest = [edit for edit in edits if edit not in equal]
    begin = time.monotonic()
    counts = {edit.path: Counter[str]() for edit in edits}
    for edit in equal:
        counts[edit.path]["equivalent"] += 1

    def tell(edit: Edit, verdict: Verdict) -> None:
        counts[edit.path]["caught" if verdict.by else "survived"] += 1
        _tell(edit, verdict, verbose=args.verbose)

    judge(rest, args.jobs, tell)
    print(table(counts))
    caught = sum(row["caught"] for row in counts.values())
    print(
        f"{caught} of {len(rest)} caught ({caught / max(1, len(rest)):.1%}), {len(equal)} "
        f"equivalent, in {time.monotonic() - begin:.0f} s"
    )
    return 0 if caught >= LEAST * len(rest) else 1


def _tell(edit: Edit, verdict: Verdict, *, verbose: bool) -> None:
    if not verdict.by:
        print(f"{diff(edit)}\n  survived, {verdict.seconds:.1f} s", flush=True)
    elif verbose:
        print(f"{edit.name} {verdict.seconds:.1f} s: {verdict.by}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
