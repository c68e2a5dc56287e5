"""More load than there are seats for, rude clients beside it, and an engine core that is killed
and stopped again and again.

    python benchmarks/soak_faults.py [--minutes 15] [--overload 4] [--kill-every 60]

Every prompt's answer, greedy or seeded, is known from before, token by token. A stream that ends
whole must say exactly those; one that ends in an error event, the first of them: what is missing is
lost, what is said beyond them is duplicated. Refusals (429, 503) are asked again.

There are three phases. "quiet" is that load alone. In "rude", clients beside it leave their
streams, large chats and schemas, read slowly, send what is no request, break off uploads, and send
every list at its limit and beyond it. In "faults" the core is killed and stopped as well. In "rude"
the p99 of each kind of client may be at most twice that in "quiet".
Needs psutil; ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import trend
from soak_clients import Load, Result, RudeClients

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.bench.serving.http_client import HTTPClient, HTTPStatusError

HEALTHY_SECONDS = 5.0
"""The longest that health may take to be restored."""
NOTICED_SECONDS = 1.0
"""The longest that a core's death may go unnoticed."""
STEP_TIMEOUT = 5
"""Seconds after which a core that is stopped counts as stuck."""
STAND_BY_SECONDS = 30.0
"""After which the process that stands by is there."""
UNCHANGED_SECONDS = 10.0
"""For which the number of open files stays the same, once it has settled."""
SHARES = {"quiet": 1 / 6, "rude": 1 / 3}
"""Of the whole time; "faults" is the rest."""
MOST_SLOWED = 2.0
"""By rude clients: the p99 of a kind of client, over that of the quiet phase."""
BYTES_A_REQUEST = 16
"""That a process must be shown not to gain."""
JUDGED_LIVES = 12
"""A run of so many cores says enough of slopes."""
SETTLED = 1 / 3
"""Of the API process's run: caches and heaps fill in it."""
SETTLED_SECONDS = 30.0
"""The same of a core's life."""
JUDGED_SAMPLES = 10
"""One a second; lives that have fewer behind that are left out."""


@dataclass
class Core:
    """One engine core's life: its own bytes, and when."""

    moments: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


@dataclass
class Processes:
    """What was seen of the server's processes."""

    moments: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Own bytes of the API process."""
    cores: dict[int, Core] = field(default_factory=dict)
    noticed: list[float] = field(default_factory=list)
    """Seconds until health said that a core was killed."""
    restored: dict[str, list[float]] = field(default_factory=lambda: {"killed": [], "stopped": []})
    """Seconds until health was there again: after a kill, and after a stop was noticed."""


def cores_of(api: psutil.Process) -> list[psutil.Process]:
    """The engine core's process, and behind it the one that stands by, if there is one."""
    found = []
    for process in api.children():
        try:
            if "quire.engine.process" in process.cmdline():
                found.append(process)
        except psutil.Error:  # it has just ended
            continue
    return sorted(found, key=psutil.Process.create_time)


async def break_core(
    args: argparse.Namespace, api: psutil.Process, load: Load, until: float, seen: Processes
) -> None:
    """Kill or stop the engine core every so often, and see when health is restored."""
    client, every = HTTPClient(load.url), args.kill_every
    for number in itertools.count(1):
        if time.monotonic() + every + STEP_TIMEOUT + 2 * HEALTHY_SECONDS > until:
            break
        await asyncio.sleep(every)
        core = cores_of(api)[0]
        kind = "killed" if number % args.stop_each else "stopped"
        if kind == "killed":
            core.kill()
        else:
            core.suspend()
        begin = time.monotonic()
        load.result.counts[kind] += 1
        down = False
        while time.monotonic() < begin + 12 * HEALTHY_SECONDS:
            try:
                await client.text("GET", "/health")
                if down:
                    break
            except HTTPStatusError:
                if not down and kind == "stopped":
                    begin = time.monotonic()
                elif not down:
                    seen.noticed.append(round(time.monotonic() - begin, 3))
                down = True
            await asyncio.sleep(0.01)
        seen.restored[kind].append(round(time.monotonic() - begin, 2))
    await client.close()


def own_bytes(process: psutil.Process) -> int:
    """Resident bytes, but for the pages of files: those the system takes back when it likes, be it
    for no more than that nobody has read them for a while, and a process gains none by a leak.

    Raises:
        psutil.Error: the process has ended.
    """
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
        found = {name: int(size) for name, size in re.findall(r"(VmRSS|RssFile):\s+(\d+) kB", text)}
        return 1024 * (found["VmRSS"] - found["RssFile"])
    except (OSError, KeyError):  # it has just ended, or is not waited for yet
        raise psutil.NoSuchProcess(process.pid) from None


async def watch(api: psutil.Process, until: float, seen: Processes) -> None:
    """Note bytes once a second."""
    while time.monotonic() < until:
        seen.moments.append(time.monotonic())
        seen.sizes.append(own_bytes(api))
        for process in cores_of(api)[:1]:
            try:
                running = process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
                size = own_bytes(process)
            except psutil.Error:
                continue
            if running:
                core = seen.cores.setdefault(process.pid, Core())
                core.moments.append(seen.moments[-1])
                core.sizes.append(size)
        await asyncio.sleep(1.0)


def slopes(args: argparse.Namespace, seen: Processes) -> dict[str, trend.Estimate]:
    """Bytes a minute that the API process gains, and a core does in its life."""
    begin = seen.moments[0] + SETTLED * (seen.moments[-1] - seen.moments[0])
    kept = [(m / 60, s) for m, s in zip(seen.moments, seen.sizes, strict=True) if m >= begin]
    minutes, sizes = zip(*kept, strict=True)
    blocks = int((seen.moments[-1] - begin) / args.kill_every)
    lives = []
    for core in seen.cores.values():
        first = core.moments[0] + SETTLED_SECONDS
        part = [i for i, moment in enumerate(core.moments) if moment >= first]
        if len(part) >= JUDGED_SAMPLES:
            at = [core.moments[i] / 60 for i in part]
            lives.append(float(np.polyfit(at, [core.sizes[i] for i in part], 1)[0]))
    return {"api": trend.slope(minutes, sizes, blocks), "core": trend.mean(lives)}


async def held(url: str) -> float:
    """Requests and the share of KV blocks in use, once nobody asks; 0 is nothing."""
    client = HTTPClient(url)
    for _ in range(100):
        text = await client.text("GET", "/metrics")
        found = re.findall(
            r"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)\S* (\S+)",
            text,
            re.MULTILINE,
        )
        left = sum(map(float, found))
        if found and not left:
            break
        await asyncio.sleep(0.1)
    await client.close()
    return left


async def open_files(api: psutil.Process) -> dict[str, int]:
    """Open files of the API process and its core, once another core stands by, clients that said
    nothing more were let go, and nothing changes any more."""
    deadline = time.monotonic() + STAND_BY_SECONDS
    while len(cores_of(api)) < 2 and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    counts, since = (0, 0), time.monotonic()
    while time.monotonic() < since + UNCHANGED_SECONDS:
        now = (api.num_fds(), cores_of(api)[0].num_fds())
        if now != counts:
            counts, since = now, time.monotonic()
        await asyncio.sleep(0.1)
    return dict(zip(("api", "core"), counts, strict=True))


async def soak(
    args: argparse.Namespace, api: psutil.Process, url: str, seen: Processes
) -> dict[str, Any]:
    result = Result()
    load = Load(url, result)
    await load.learn()
    before = await open_files(api)
    until = time.monotonic() + 60 * args.minutes
    async with asyncio.TaskGroup() as group:
        for seed in range(args.overload * args.max_num_seqs):
            group.create_task(load.ask(until, seed))
        group.create_task(watch(api, until, seen))
        await asyncio.sleep(60 * args.minutes * SHARES["quiet"])
        result.phase = "rude"
        for seed in range(args.rude):
            group.create_task(RudeClients(load).run(until, seed))
        await asyncio.sleep(60 * args.minutes * SHARES["rude"])
        result.phase = "faults"
        group.create_task(break_core(args, api, load, until, seen))
    left = await held(url)
    try:
        unharmed = await load.answers() == load.expected
    except (HTTPStatusError, OSError):
        unharmed = False
    after = await open_files(api)
    judged = 60 * args.minutes >= JUDGED_LIVES * args.kill_every
    judged &= args.kill_every >= SETTLED_SECONDS + 1.5 * JUDGED_SAMPLES
    kinds = ("killed", "stopped", "left", "read_slowly", "malformed", "broken_off")
    kinds += ("abandoned", "filled", "overfilled")
    outcomes = ("whole", "interrupted", "refused", "broken")
    return {
        "minutes": args.minutes,
        "requests": result.counts["requests"],
        "faults": {kind: result.counts[kind] for kind in kinds},
        **{name: result.counts[name] for name in outcomes},
        "most_interrupted": args.max_num_seqs * sum(map(len, seen.restored.values())),
        "lost": result.counts["lost"],
        "duplicated": result.counts["duplicated"],
        "unexpected": dict(result.strange),
        "seconds": {
            f"{phase} {kind}": [round(float(np.percentile(found, p)), 3) for p in (50, 99)]
            for (phase, kind), found in result.seconds.items()
        },
        "slowed": {
            kind: round(
                float(np.percentile(result.seconds["rude", kind], 99) / np.percentile(quiet, 99)), 2
            )
            for (phase, kind), quiet in [*result.seconds.items()]
            if phase == "quiet"
        },
        "noticed_s": seen.noticed,
        "restored_s": seen.restored,
        "own_bytes": {"api": seen.sizes[-1], "core": [*seen.cores.values()][-1].sizes[-1]},
        "own_bytes_a_minute": (
            {name: asdict(found) for name, found in slopes(args, seen).items()} if judged else {}
        ),
        "own_bytes_a_minute_below": BYTES_A_REQUEST * result.counts["requests"] / args.minutes,
        "files_before": before,
        "files_after": after,
        "left_in_use": left,
        "canary_unharmed": unharmed,
    }


def is_level(slopes: dict[str, dict[str, float]], below: float) -> bool:
    """No growth that matters could have hidden in the noise; none at all is seen in the process
    that lives on. A core's heap has not filled in its minute: it may grow, within that."""
    return slopes["api"]["low"] <= 0 and all(slope["high"] < below for slope in slopes.values())


def missed(summary: dict[str, Any]) -> list[str]:
    """The bars that are not met."""
    restored = [*summary["restored_s"]["killed"], *summary["restored_s"]["stopped"]]
    slopes = summary["own_bytes_a_minute"]
    files = zip(summary["files_before"].values(), summary["files_after"].values(), strict=True)
    bars = {
        # Whoever was told nothing begins again; what had begun can be no more than the seats.
        "interrupted": summary["interrupted"] <= summary["most_interrupted"],
        "slowed": all(ratio <= MOST_SLOWED for ratio in summary["slowed"].values()),
        "lost": summary["lost"] == 0,
        "duplicated": summary["duplicated"] == 0,
        "broken": summary["broken"] == 0,
        "unexpected": not summary["unexpected"],
        "noticed_s": max(summary["noticed_s"], default=0.0) <= NOTICED_SECONDS,
        "restored_s": max(restored, default=0.0) <= HEALTHY_SECONDS,
        "own_bytes_a_minute": not slopes or is_level(slopes, summary["own_bytes_a_minute_below"]),
        "files_after": all(after <= before for before, after in files),
        "left_in_use": summary["left_in_use"] == 0,
        "canary_unharmed": summary["canary_unharmed"],
        "exit_status": summary["exit_status"] == 0,
    }
    return [name for name, met in bars.items() if not met]


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--overload", type=int, default=4, help="clients for each seat")
    parser.add_argument("--rude", type=int, default=4, help="rude clients beside them")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="S")
    parser.add_argument(
        "--stop-each", type=int, default=4, metavar="N", help="stop it instead each Nth time"
    )
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--log", help="keep the server's log in this file")
    parser.add_argument("--samples", help="keep what was seen of memory in this file")
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a row")
    args = parser.parse_args()
    command = [sys.executable, "-m", "quire", "serve", args.model, "--port", "0"]
    command += ["--max-num-seqs", str(args.max_num_seqs)]
    command += ["--max-queued-requests", str(2 * args.max_num_seqs)]
    command += ["--num-gpu-blocks-override", "1024", "--step-timeout", str(STEP_TIMEOUT)]
    with open(args.log, "a+") if args.log else tempfile.TemporaryFile("a+") as log:
        log.truncate(0)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            found = None
            while not found:
                time.sleep(0.1)
                log.seek(0)
                text = log.read()
                found = re.search(r"on (http://\S+)/v1", text)
                if process.poll() is not None:
                    print(text, file=sys.stderr)
                    return 2
            seen = Processes()
            summary = asyncio.run(soak(args, psutil.Process(process.pid), found[1], seen))
        finally:
            process.terminate()
            status = process.wait()
    if args.samples:
        Path(args.samples).write_text(json.dumps(asdict(seen)))
    summary["exit_status"] = status
    summary["missed"] = missed(summary)
    print(json.dumps(summary, indent=2))
    if args.json is not None:
        program = "python benchmarks/soak_faults.py"
        write_json(args.json, summary | circumstances("soak_faults", program))
    return 1 if summary["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
