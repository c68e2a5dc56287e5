"""What the peers' scripts share: the flags, the clock, the row. It is `quire bench`'s own code.

A script runs in its peer's environment, where Quire need not be installed: its sources are read
from this checkout, and of those only modules that need no more than NumPy and msgspec.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from quire.bench import latency, throughput
from quire.bench.machine import describe_machine, git_commit, peak_rss_bytes, portable_name
from quire.bench.report import Row, summarise, write_json
from quire.bench.workload import token_prompts
from quire.checkpoint.presets import preset_config
from quire.core.outputs import RequestMetrics

_SETTINGS = {
    "latency": ("input_len", "output_len", "batch_size"),
    "throughput": ("input_len", "output_len", "num_prompts"),
    "startup": ("input_len",),
}
_MEASURED = {
    "latency": ("prefill_tok_s", "decode_tok_s", "ttft_s", "tpot_ms", "peak_rss_bytes"),
    "throughput": ("elapsed_s", "output_tok_s", "total_tok_s", "requests_s"),
    "startup": ("start_to_first_token_s",),
}


class Peer(Protocol):
    """An engine that has loaded its model.

    Attributes:
        name: the package that was installed, and its version.
    """

    name: str
    vocab_size: int

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        """Exactly `output_len` greedy tokens for each prompt of token ids.

        Returns:
            for each prompt its `arrival_time`, `first_token_time` and `last_token_time`.
        """


def main(
    open_peer: Callable[[argparse.Namespace], Peer],
    add_flags: Callable[[argparse.ArgumentParser], Any] = lambda parser: None,
) -> None:
    """Measure what the command line asks for; print the row as one line of JSON.

    Args:
        open_peer: loads the model.
        add_flags: adds the peer's own flags.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    add = parser.add_argument
    add("bench", choices=list(_MEASURED))
    add("--model", default="qwen3-0.6b", help="a preset of Quire, or a folder or file of weights")
    add("--dtype", default="bfloat16")
    add("--quantization", choices=["int8", "int4"])
    add("--input-len", type=int, default=128)
    add("--output-len", type=int, default=64)
    add("--batch-size", type=int, default=1, help="of latency")
    add("--num-prompts", type=int, default=32, help="of throughput")
    add("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--repetitions", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="append the row to this file, too")
    add("--note")
    add("--first-token", action="store_true", help=argparse.SUPPRESS)  # the process of a start
    add_flags(parser)
    args = parser.parse_args()
    if args.first_token:
        peer = open_peer(args)
        [metrics] = peer.generate([list(range(1, args.input_len + 1))], 1)
        print(json.dumps({"first_token": metrics.first_token_time, "peer": peer.name}))
        return
    row = _startup(args) if args.bench == "startup" else _generation(open_peer(args), args)
    words = [portable_name(word) for word in sys.argv[1:]]
    row |= {
        "bench": args.bench,
        "machine": describe_machine(),
        "commit": git_commit(),
        "command": shlex.join(["python", f"benchmarks/peers/{Path(sys.argv[0]).name}", *words]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if args.note is not None:
        row["note"] = args.note
    print(json.dumps(row, ensure_ascii=False))
    if args.json is not None:
        write_json(args.json.with_suffix(".jsonl"), row)


def config_of(model: str) -> dict[str, Any]:
    """The config.json of a preset or of a folder."""
    return preset_config(model) or json.loads((Path(model) / "config.json").read_text())


def sequences(args: argparse.Namespace) -> int:
    """How many the benchmark generates at once."""
    counts: dict[str, int] = {"latency": args.batch_size, "throughput": args.num_prompts}
    return counts.get(args.bench, 1)


def _generation(peer: Peer, args: argparse.Namespace) -> Row:
    """One warm-up of the same shape, then the repetitions, each of new random prompts."""
    count = sequences(args)
    samples = []
    for repetition in range(args.repetitions + 1):
        prompts = token_prompts(count, args.input_len, peer.vocab_size, [args.seed, repetition])
        start = time.perf_counter()
        metrics = peer.generate(prompts, args.output_len)
        elapsed = time.perf_counter() - start
        if args.bench == "throughput":
            samples.append(throughput.rates(elapsed, count, args.input_len, args.output_len))
        else:
            timings = latency.timings(metrics, args.input_len, args.output_len)
            samples.append(timings | {"peak_rss_bytes": peak_rss_bytes()})
    return _row(args, peer.name, samples[1:])


def _startup(args: argparse.Namespace) -> Row:
    """A fresh process each repetition; one more before them warms the file cache."""
    samples = []
    for _ in range(args.repetitions + 1):
        command = [sys.executable, *sys.argv, "--first-token"]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"The started process failed:\n{done.stderr[-2000:]}")
        report = json.loads(done.stdout.splitlines()[-1])
        samples.append({"start_to_first_token_s": report["first_token"] - start})
    return _row(args, report["peer"], samples[1:])


def _row(args: argparse.Namespace, name: str, samples: list[Row]) -> Row:
    facts: Row = {"peer": name, "model": portable_name(args.model), "dtype": args.dtype}
    facts |= {key: getattr(args, key) for key in ("quantization", *_SETTINGS[args.bench])}
    return summarise([*facts, *_MEASURED[args.bench]], facts, samples)
