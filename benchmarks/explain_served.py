"""Faults of served engines: does `quire explain --url` name each?

    python -m benchmarks.explain_served [--fault NAME ... | --healthy | --all] [--repetitions R]
        [--busy] [--json FILE | --resume FILE] [--save DIR]
    python -m benchmarks.explain_served --prove [--repetitions R] [--fault NAME ...] [--json FILE]
    python -m benchmarks.explain_served --table FILE

Each fault is a server of a small model, clients, and what is wrong with either. --busy adds a
process that uses one core. A row says which causes were named, in order. It is written at once;
--resume FILE leaves out what FILE has. Causes that counts prove need no idle machine. --prove
starts a second server with the first change of the right cause, and measures both in turns under
the same load, for all faults whose change is a flag. It ends with the table of gains, the median
error, and how many estimates exceed twice the measured gain. Faults that need the engine in one
process are in `explain_faults`. --table prints the rows of a file as the tables of docs/explain.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.explain_faults import save
from benchmarks.explain_healthy import HEALTHY_LOADS
from benchmarks.explain_injections import Server, certificate, neighbour
from benchmarks.explain_loads import FAULTS, Fault
from benchmarks.explain_proofs import HELD_OUT, PROVABLE, proven
from benchmarks.explain_servers import observed, serving
from benchmarks.explain_tables import LOADED, gains, rates, tables
from quire.bench.results.report import jsonl, write_json
from quire.core.errors import QuireError
from quire.explain.report import Finding
from quire.explain.whatif import explained

OTHERS = ("busy_neighbour", "stolen_cpu")
"""Right verdicts on a healthy server beside other load."""


def watch(server: Server, name: str, fault: Fault, kept: Path | None) -> dict[str, Any]:
    """Return the row of one window."""
    evidence = observed(server, fault)
    if isinstance(evidence, Finding):
        right = evidence.cause in fault.causes
        row = {"fault": name, "first": right, "in_three": right, "causes": [evidence.cause]}
        return row | {"neighbours": None, "text": evidence.text}
    report = explained(evidence)
    named = [finding.cause for finding in report.causes] or [report.verdict.cause]
    others = evidence.host.others if evidence.host is not None else 0.0
    unharmed = not report.verdict.fault or (others >= LOADED and named[0] in OTHERS)
    if kept is not None:
        save(evidence, kept / f"{name}.json")
    return {
        "fault": name,
        "first": named[0] in fault.causes if fault.causes else unharmed,
        "in_three": not fault.causes or bool(set(named[:3]) & set(fault.causes)),
        "causes": named[:4],
        "changes": [change.flag for change in report.changes],
        "confidence": report.verdict.confidence,
        "neighbours": evidence.host and round(evidence.host.others, 2),
        "window_s": round(report.window_s, 1),
        "text": report.verdict.text,
    }


def watched(
    faults: dict[str, Fault], repetitions: int, kept: Path | None, done: set[tuple[int, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all faults that are not done. Those of equal servers share one."""
    servers: dict[Any, list[tuple[int, str]]] = {}
    for repetition, name in itertools.product(range(repetitions), faults):
        if (repetition, name) not in done:
            servers.setdefault(faults[name].server, []).append((repetition, name))
    for members in servers.values():
        first = faults[members[0][1]]
        if first.prepare is certificate:
            ssl._create_default_https_context = ssl._create_unverified_context  # type: ignore[assignment]
        with tempfile.TemporaryDirectory() as folder, serving(first, Path(folder)) as server:
            for repetition, name in members:
                begin = time.monotonic()
                try:
                    row = watch(server, name, faults[name], kept)
                except QuireError as error:
                    row = {
                        "fault": name,
                        "first": False,
                        "in_three": False,
                        "causes": ["no report"],
                    }
                    row |= {"neighbours": None, "text": str(error)}
                yield {
                    "repetition": repetition,
                    "seconds": round(time.monotonic() - begin, 1),
                } | row


def run(args: argparse.Namespace, faults: dict[str, Fault]) -> None:
    """Print and write a row per fault as it comes, then how many are right."""
    rows = [row for row in read(args.json) if row.get("busy") is args.busy] if args.resume else []
    rows = [row for row in rows if row["fault"] in faults and "repetition" in row]
    done = {(row["repetition"], row["fault"]) for row in rows}
    count, begin = args.repetitions * len(faults), time.monotonic()
    with neighbour() if args.busy else nullcontext():
        for row in watched(faults, args.repetitions, args.save, done):
            row["busy"] = args.busy
            rows.append(row)
            mark = "right" if row["first"] else "3rd" if row["in_three"] else "WRONG"
            where = f"[{len(rows)}/{count}, {time.monotonic() - begin:.0f} s]"
            print(f"{where} {row['fault']:<15} {mark:<5} {', '.join(row['causes'])}")
            print(f"    {row['text']}", flush=True)
            if args.json is not None:
                write_json(args.json, [row])
    print("\n".join(rates(rows)))


def read(path: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a file; none if it does not exist."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", nargs="+", choices=[*FAULTS, *HEALTHY_LOADS, *HELD_OUT],
                        default=[])  # fmt: skip
    parser.add_argument("--healthy", action="store_true", help="watch the healthy loads")
    parser.add_argument("--all", action="store_true", help="watch faults and healthy loads")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="beside a process that uses one core")
    parser.add_argument("--prove", action="store_true", help="measure the first change")
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a line per verdict")
    parser.add_argument("--resume", type=jsonl, metavar="FILE",
                        help="go on with a cut run of --json FILE")  # fmt: skip
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the evidence")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the rows of FILE")
    args = parser.parse_args()
    args.json = args.resume or args.json
    if args.table is not None:
        print("\n".join(tables(read(args.table))))
        return
    every = FAULTS | HEALTHY_LOADS
    if args.prove:
        done = {row["fault"] for row in read(args.resume) if "proven_gain" in row}
        found = []
        for name in args.fault or PROVABLE:
            if name in done:
                continue
            row = proven(name, args.repetitions, args.save)
            print(json.dumps(row), flush=True)
            if "proven_gain" in row:
                found.append(row)
                if args.json is not None:
                    write_json(args.json, [row])
        print("\n".join(gains(found)))
        return
    chosen = HEALTHY_LOADS if args.healthy else every if args.all else FAULTS
    run(args, {name: every[name] for name in args.fault or chosen})


if __name__ == "__main__":
    main()
