"""What a step costs in the scheduler, and what it costs to let a request in.

    python benchmarks/scheduler.py [--peer PYTHON] [--json FILE.jsonl]

A step is `schedule` and `update`, the making of what is sent to the front end included; everyone
decodes. Letting a request in is all from the decoded message to the step that computes its
prompt: the `Request`, its hashes, its place in line, its blocks. `--peer` names the interpreter
of an environment with vLLM, whose scheduler then gets the same requests in turn, a shape at a time
(`peers/vllm_scheduler.py`), so that both meet the same neighbours on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BLOCK_SIZE = 16
WARM_UP, STEPS = 32, 256
"""Decode steps; as multiples of a block they meet every block boundary."""
ADMISSIONS = 40
PROMPT = 2000
PEER = Path(__file__).parent / "peers" / "vllm_scheduler.py"


class Driver(Protocol):
    """A scheduler, driven by hand."""

    def start(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        """Begin with a new, empty scheduler."""

    def message(self, name: str, prompt: list[int], max_tokens: int) -> Any:
        """What the front end sends, as decoded."""

    def add(self, message: Any) -> None:
        """Make a request of it and put it in line."""

    def schedule(self) -> None: ...

    def sample(self) -> None:
        """Make the result of a step in which every finished prompt samples a token."""

    def update(self) -> None: ...

    def finish(self, name: str) -> None:
        """End a request."""


class Quire:
    def __init__(self, algo: str) -> None:
        self.algo: Any = algo

    def start(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        from quire.core.batch import ModelOutput
        from quire.core.config import CacheConfig, SchedulerConfig
        from quire.core.messages import AddRequest
        from quire.core.options import RequestInputs
        from quire.core.request import Request, pack_tokens
        from quire.core.sampling_params import SamplingParams
        from quire.scheduler.scheduler import Scheduler

        self._message, self._pack, self._params = AddRequest, pack_tokens, SamplingParams
        self._request, self._result = Request, ModelOutput
        self._inputs = RequestInputs(eos_token_ids=(2,))
        limits = SchedulerConfig(16384, max_num_seqs, budget)
        cache = CacheConfig(BLOCK_SIZE, num_blocks, hash_algo=self.algo)
        self.scheduler = Scheduler(limits, cache)

    def message(self, name: str, prompt: list[int], max_tokens: int) -> Any:
        params = self._params(temperature=0.0, max_tokens=max_tokens)
        return self._message(name, self._pack(prompt), params, 0.0, self._inputs)

    def add(self, message: Any) -> None:
        self.scheduler.add(
            self._request(
                message.request_id,
                message.prompt_token_ids,
                message.sampling_params,
                arrival_time=message.arrival_time,
                max_model_len=16384,
                inputs=message.inputs,
            )
        )

    def schedule(self) -> None:
        self._batch = self.scheduler.schedule(0.0)

    def sample(self) -> None:
        self._output = self._result(np.full((len(self._batch.request_ids), 1), 7))

    def update(self) -> None:
        self.scheduler.update(self._batch, self._output, 0.0)

    def finish(self, name: str) -> None:
        self.scheduler.abort([name])


def microseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def prompt(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(1000, 100_000, length).tolist()  # type: ignore[no-any-return]


def step_costs(driver: Driver, num_seqs: int, context: int) -> dict[str, Any]:
    """Microseconds of a decode step, a mean over many."""
    rng = np.random.default_rng(0)
    length = context + WARM_UP + STEPS
    blocks = num_seqs * (length // BLOCK_SIZE + 2)
    driver.start(blocks, num_seqs, num_seqs * context)
    for i in range(num_seqs):
        name = f"request-{i:024}"
        driver.add(driver.message(name, prompt(rng, context), WARM_UP + STEPS + 10))
    schedule, update = [], []
    for _ in range(1 + WARM_UP + STEPS):
        schedule.append(microseconds(driver.schedule))
        driver.sample()
        update.append(microseconds(driver.update))
    return {
        "num_seqs": num_seqs,
        "context": context,
        "schedule_us": statistics.mean(schedule[-STEPS:]),
        "update_us": statistics.mean(update[-STEPS:]),
    }


def admit(driver: Driver, message: Any) -> None:
    driver.add(message)
    driver.schedule()


def admission_costs(driver: Driver, length: int) -> dict[str, Any]:
    """Median microseconds of letting a prompt in that nobody has asked, and one that is cached."""
    rng = np.random.default_rng(0)
    driver.start(2 * ADMISSIONS * (length // BLOCK_SIZE + 2), 4, length)
    costs: dict[str, list[float]] = {"miss": [], "hit": []}
    for i in range(ADMISSIONS):
        tokens = prompt(rng, length)
        for kind, times in costs.items():
            name = f"{kind}-{i:024}"
            message = driver.message(name, tokens, 8)
            times.append(microseconds(lambda: admit(driver, message)))  # noqa: B023
            driver.sample()
            driver.update()
            driver.finish(name)
    return {"prompt": length} | {f"{k}_us": statistics.median(v) for k, v in costs.items()}


def cases(args: argparse.Namespace) -> list[tuple[str, tuple[int, ...]]]:
    steps = [("step", (n, args.context)) for n in args.num_seqs]
    steps += [("step", (args.context_seqs, length)) for length in args.contexts]
    return [*steps, ("admission", (args.prompt,))]


def measure(driver: Driver, kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return step_costs(driver, *shape) if kind == "step" else admission_costs(driver, *shape)


def serve(driver: Driver) -> None:
    """Measure what standard input asks for, one JSON line each."""
    for line in sys.stdin:
        kind, shape = json.loads(line)
        print(json.dumps(measure(driver, kind, tuple(shape))), flush=True)


class Peer:
    """Another interpreter that runs `serve` with its own scheduler."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, shape]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):  # else it is not an answer
                return json.loads(line)  # type: ignore[no-any-return]
        raise SystemExit("the peer has ended")


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number the lowest: what disturbs a measurement only adds to it."""
    return {key: min(row[key] for row in rows) for key in rows[0]}


def show(kind: str, ours: dict[str, Any], theirs: dict[str, Any] | None) -> None:
    parts = [
        f"{key.removesuffix('_us')} {value:8.1f} µs"
        + (f" (vLLM {theirs[key]:9.1f}, {theirs[key] / value:5.1f}×)" if theirs else "")
        if key.endswith("_us")
        else f"{key} {value:5}"
        for key, value in ours.items()
    ]
    if kind == "step":
        total = ours["schedule_us"] + ours["update_us"]
        parts.append(f"total {total:8.1f} µs, {total / (60 + 1.5 * ours['num_seqs']):4.2f} of bar")
    print(kind, *parts, sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seqs", type=int, nargs="+", default=[1, 8, 32, 128, 256, 512, 1024])
    parser.add_argument("--context", type=int, default=500, help="tokens, where --num-seqs varies")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 8000])
    parser.add_argument("--context-seqs", type=int, default=128, help="where --contexts varies")
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--hash-algo", default="sha256")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note")
    args = parser.parse_args()
    peer = Peer(args.peer) if args.peer else None
    rows = []
    for kind, shape in cases(args):
        ours, theirs = [], []
        for _ in range(args.repetitions):
            ours.append(measure(Quire(args.hash_algo), kind, shape))
            if peer:
                theirs.append(peer.measure(kind, shape))
        row = best(ours)
        show(kind, row, best(theirs) if peer else None)
        rows.append({"case": kind, "quire": row} | ({"vllm": best(theirs)} if peer else {}))
    if args.json:
        write_rows(args, rows)


def write_rows(args: argparse.Namespace, cases: list[dict[str, Any]]) -> None:
    from quire.bench.machine import circumstances
    from quire.bench.results.report import write_json

    row = {
        "cases": cases,
        "hash_algo": args.hash_algo,
        "repetitions": args.repetitions,
    }
    row |= circumstances("scheduler", "python benchmarks/scheduler.py")
    write_json(args.json, row | ({"note": args.note} if args.note else {}))


if __name__ == "__main__":
    main()
