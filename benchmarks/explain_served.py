"""Faults of served engines: does `quire explain --url` name each?

    python -m benchmarks.explain_served [--fault NAME ...] [--healthy] [--repetitions R] [--busy]
        [--json FILE] [--save DIR]
    python -m benchmarks.explain_served --prove [--repetitions R] [--fault NAME ...] [--json FILE]
    python -m benchmarks.explain_served --table FILE

Each fault is a server of a small model, clients, and what is wrong with either. --busy adds a
process that uses one core. A row says which causes were named, in order. Causes that counts prove
need no idle machine. --prove starts a second server with the first change of the right cause, and
measures both in turns under the same load, for all faults whose change is a flag. Faults that need
the engine in one process are in `explain_faults`. --table prints the rows of a file as the tables
of docs/explain.md: what was named, and what was gained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from benchmarks.explain_faults import gained, save
from benchmarks.explain_injections import Server, certificate, neighbour
from benchmarks.explain_loads import FAULTS, HEALTHY_LOADS, Fault
from quire.bench.prove import proof_of
from quire.bench.results.report import write_json
from quire.bench.serving.server_process import free_port, is_ready, stop
from quire.cli.explain import ask
from quire.explain.evidence import Evidence, Window
from quire.explain.report import THROUGHPUT, Change
from quire.explain.whatif import explained

WINDOW, WARM = 3.0, 1.0
STANDBY = 12.0
"""Seconds after which a server's standby process has imported everything."""
LOADED = 0.5
"""CPUs that other programs use from which a window counts as one beside other load."""
OTHERS = ("busy_neighbour", "stolen_cpu")
"""Right verdicts on a healthy server beside other load."""
PROVABLE = (
    "seats", "tiny_kv", "preemption", "no_cache", "lora", "tokenizer", "template", "chunks",
    "long_prompts", "stretch", "many_steps", "drafter", "ranks", "few_threads", "threads",
    "float32", "reference", "quota", "short_context",
)  # fmt: skip
"""Faults whose first change is a flag of the engine."""
NUMBERS = itertools.count()
"""Of requests: no fault repeats the prompts of another."""


@contextmanager
def serving(fault: Fault, folder: Path) -> Iterator[Server]:
    port = free_port()
    model, *others = fault.flags  # a change is the last of them, and the last of equal flags counts
    flags = [model, *(fault.prepare(folder) if fault.prepare else ()), *others]
    flags += ["--host", "127.0.0.1", "--port", str(port)]
    url = f"{'https' if '--ssl-certfile' in flags else 'http'}://127.0.0.1:{port}"
    with (folder / "log").open("w+") as log:
        with fault.start():
            process = subprocess.Popen(
                [sys.executable, "-m", "quire", "serve", *flags],
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | fault.environment,
            )  # fmt: skip
        try:
            while not is_ready(url):
                if process.poll() is not None:
                    raise SystemExit((folder / "log").read_text()[-2000:])
                time.sleep(0.1)
            yield Server(url, process.pid, folder)
        finally:
            stop(process)


@contextmanager
def load(fault: Fault, url: str) -> Iterator[None]:
    """Send requests from all clients until the end of the block."""
    over, address = threading.Event(), urlsplit(url)
    model = fault.flags[0]

    def client() -> None:
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        extra = {"context": ssl._create_unverified_context()} if kind is HTTPSConnection else {}
        while not over.wait(fault.pause):
            connection = kind(address.hostname, address.port, timeout=60, **extra)
            try:
                if fault.received:
                    connection.sock = narrow(address, fault.received)
                body = {"model": model} | fault.body(next(NUMBERS))
                head = {"Content-Type": "application/json"}
                connection.request("POST", fault.path, json.dumps(body), head)
                answer = connection.getresponse()
                while not over.is_set() and fault.reads(answer):
                    pass
                if answer.status != 200:
                    time.sleep(0.05)
            except (OSError, HTTPException):
                time.sleep(0.05)
            finally:
                connection.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(fault.clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(5.0)


def narrow(address: SplitResult, received: int) -> socket.socket:
    """Connect a socket that holds few received bytes."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connected.settimeout(60.0)
    connected.connect((address.hostname, address.port))
    return connected


def observed(server: Server, fault: Fault) -> Evidence:
    """Return a window of the server under its load."""
    with load(fault, server.url), fault.during(server):
        time.sleep(WARM)
        return ask(server.url, WINDOW)


def watch(server: Server, name: str, fault: Fault, kept: Path | None) -> dict[str, Any]:
    """Return the row of one window."""
    evidence = observed(server, fault)
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
        "text": report.verdict.text,
    }


def changed(flags: tuple[str, ...], change: Change) -> tuple[str, ...]:
    """Return a server's flags with a change; of two equal flags, the last one counts."""
    kept = list(flags)
    for name in (name for name, value in change.fields.items() if value is None):
        flag = f"--{name.replace('_', '-')}"
        if flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    return (*kept, *(change.flag.split() if change.flag.startswith("--") else ()))


def speed(window: Window, metric: str) -> float:
    """Return tokens/s, or the p99 of tokens per second of a stream."""
    return window.output_tok_s if metric == THROUGHPUT else 1.0 / max(1e-3, window.itl_p99)


def proven(name: str, repetitions: int, kept: Path | None) -> dict[str, Any]:
    """Return the row of the first change of the right cause, if a flag makes it."""
    fault = FAULTS[name]
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        before = stack.enter_context(serving(fault, folders[0]))
        evidence = observed(before, fault)
        report = explained(msgspec.structs.replace(evidence, halves=[]))
        causes = [finding.cause for finding in report.causes]
        row = {"fault": name, "causes": causes[:4], "text": report.verdict.text}
        change = next((c for c in report.changes if c.fields), None)
        if not set(causes[:1]) & set(fault.causes) or change is None:
            return row
        other = replace(fault, flags=changed(fault.flags, change))
        after = stack.enter_context(serving(other, folders[1]))
        time.sleep(STANDBY)
        pairs, most = [], 0.0
        for n in range(repetitions):
            both = [(before, fault), (after, other)][:: -1 if n % 2 else 1]
            seen = [observed(*one) for one in both][:: -1 if n % 2 else 1]
            pairs.append(tuple(speed(one.window, change.metric) for one in seen))
            most = max(most, *(one.host.others for one in seen if one.host is not None))
        if kept is not None:
            save(evidence, kept / f"{name}.json")
            save(seen[1], kept / f"{name}_after.json")
        return row | {"others": most} | gained(change, proof_of(change, pairs))


def gains(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of estimated and proven gains, and how far they are apart.

    A proof beside other load proves nothing, and is left out.
    """
    yield "| fault | cause | first change | metric | estimated | measured |"
    yield "|---|---|---|---|---|---|"
    errors, ratios = [], []
    for row in (row for row in rows if row.get("others", 0.0) < LOADED):
        seen, told = row["proven_gain"], row["estimated_gain"]
        cause = row["cause"] if "cause" in row else row["causes"][0]
        yield (
            f"| {row['fault']} | `{cause}` | `{row['flag']}` | {row['metric']} | {told:+.0%} ± "
            f"{100 * told * row['uncertainty']:.0f} | {seen:+.0%} ± {100 * row['spread']:.0f} |"
        )
        errors.append(abs(told - seen) / max(1e-9, abs(seen)))
        ratios.append(told / max(1e-9, seen))
    if errors:
        yield ""
        yield (
            f"median error {statistics.median(errors):.0%}; {sum(r > 2.0 for r in ratios)} of "
            f"{len(ratios)} estimates above twice the measured gain"
        )


def watched(faults: dict[str, Fault], repetitions: int, kept: Path | None) -> Iterator[Any]:
    """Yield the rows of all faults. Those that follow each other may share a server."""
    for _, group in itertools.groupby(faults.items(), key=lambda item: item[1].server):
        members = list(group)
        first = members[0][1]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if first.prepare is certificate:
                ssl._create_default_https_context = ssl._create_unverified_context
            server = stack.enter_context(serving(first, folder))
            for repetition, (name, fault) in itertools.product(range(repetitions), members):
                yield {"repetition": repetition} | watch(server, name, fault, kept)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the confusion table: what was named first for each fault, beside load or not."""
    yield f"| fault | right | first verdicts | beside {LOADED} busy CPUs or more |"
    yield "|---|---|---|---|"
    for name, fault in (FAULTS | HEALTHY_LOADS).items():
        mine = [row for row in rows if row["fault"] == name]
        if not mine:
            continue
        right = "no cause" if name in HEALTHY_LOADS else f"`{fault.causes[0]}`"
        cells = [_verdicts(row for row in mine if _loaded(row) is busy) for busy in (False, True)]
        yield f"| {name} | {right} | {' | '.join(cells)} |"


def _loaded(row: dict[str, Any]) -> bool:
    return bool((row["neighbours"] or 0.0) >= LOADED)


def _verdicts(rows: Iterator[dict[str, Any]]) -> str:
    counts = Counter(row["causes"][0] for row in rows)
    return ", ".join(f"{cause} {n}" if n > 1 else cause for cause, n in counts.most_common())


def rates(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how many rows name the right cause first, and among the first three."""
    for busy in (False, True):
        for healthy in (False, True):
            some = [
                r for r in rows if _loaded(r) is busy and (r["fault"] in HEALTHY_LOADS) is healthy
            ]
            if some:
                where = f"beside {LOADED} busy CPUs or more" if busy else "else"
                first, third = (sum(r[key] for r in some) for key in ("first", "in_three"))
                if healthy:
                    yield f"healthy, {where}: {first} of {len(some)} without a fault"
                else:
                    yield f"faults, {where}: {first} of {len(some)} first, {third} in three"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", nargs="+", choices=[*FAULTS, *HEALTHY_LOADS], default=[])
    parser.add_argument("--healthy", action="store_true", help="watch the healthy loads")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="beside a process that uses one core")
    parser.add_argument("--prove", action="store_true", help="measure the first change")
    parser.add_argument("--json", type=Path, help="a .jsonl file, to append a line per verdict")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the evidence")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the rows of FILE")
    args = parser.parse_args()
    if args.table is not None:
        rows = [json.loads(line) for line in args.table.read_text().splitlines()]
        proofs = [row for row in rows if row.get("uncertainty") is not None]
        rows = [row for row in rows if "first" in row]
        print("\n".join([*table(rows), "", *rates(rows), "", *gains(proofs)]))
        return
    every = FAULTS | HEALTHY_LOADS
    if args.prove:
        for name in args.fault or PROVABLE:
            row = proven(name, args.repetitions, args.save)
            print(json.dumps(row), flush=True)
            if args.json is not None and "proven_gain" in row:
                write_json(args.json, [row])
        return
    names = args.fault or (HEALTHY_LOADS if args.healthy else FAULTS)
    rows = []
    with neighbour() if args.busy else nullcontext():
        for row in watched({name: every[name] for name in names}, args.repetitions, args.save):
            row["busy"] = args.busy
            rows.append(row)
            mark = "right" if row["first"] else "3rd" if row["in_three"] else "WRONG"
            print(f"{row['fault']:<15} {mark:<5} {', '.join(row['causes'])}\n    {row['text']}",
                  flush=True)  # fmt: skip
            if args.json is not None:
                write_json(args.json, [row])
    print("\n".join(rates(rows)))


if __name__ == "__main__":
    main()
