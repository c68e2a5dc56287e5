"""Seventeen faults, for real: does `quire explain` name each, and does its change gain as told?

    python benchmarks/explain_faults.py [--fault NAME ...] [--repetitions R] [--json FILE]
        [--save DIR]

The first four are made: a host that hands out operations slowly, weights that only bandwidth can
move, gaps between steps, and a rank that is slower than the others (of which only the times are
made up). The others are what people do to themselves. Each engine is
explained while it has its fault, and the first change is proven against it on the same load, the
fault still there. --save keeps each one's evidence, as the tests read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from quire.bench.engine import open_engine
from quire.bench.explained import Demand, observe
from quire.bench.kernels.limits import measure_and_keep
from quire.bench.prove import START_TIMEOUT, offline_side, proof_of, prove, request_bodies
from quire.bench.results.report import write_json
from quire.cli.explain import ask
from quire.core.op_profile import OpTime
from quire.engine.core import EngineCore
from quire.explain.evidence import Evidence
from quire.explain.limits import load_limits
from quire.explain.report import Change, Proof
from quire.explain.whatif import explained
from quire.ops import providers
from quire.ops.interface import Ops
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect

OPT: dict[str, Any] = {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"}
QWEN = {**OPT, "model": "qwen3-0.6b", "max_model_len": 2048}
KEPT_ARRIVALS = 32
DISPATCH_SECONDS, GAP_SECONDS = 100e-6, 8e-3
POOR_DRAFTER = {
    "method": "suffix",
    "num_speculative_tokens": 7,
    "num_speculative_tokens_per_batch_size": [[1, 64, 7]],
    "synthetic_acceptance_rate": 0.05,
}
UNPROVEN = {"rank", "neighbour", "affinity", "isa"}
"""Faults whose first change is no flag of the engine."""
RULES = 2000
"""Of the slow tokenizer: a pass over the text each."""


@dataclass(frozen=True)
class Fault:
    """An engine with something wrong, a load that shows it, and what should be said of it.

    Attributes:
        inject: what else is to be in force while its engines run.
    """

    cause: str
    flag: str
    args: dict[str, Any]
    demand: Demand
    inject: Callable[[], Any] = nullcontext
    served: bool = False
    edit: Callable[[Evidence], Evidence] = field(default=lambda evidence: evidence)


@contextmanager
def slow_dispatch() -> Iterator[None]:
    """Whoever calls an operation waits before it runs, as for a kernel's launch."""
    original = providers.load_ops

    def slow(op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            end = time.perf_counter() + DISPATCH_SECONDS
            while time.perf_counter() < end:
                pass
            return op(*args, **kwargs)

        return call

    def load(*args: Any, **kwargs: Any) -> Ops:
        return original(*args, **kwargs).wrapped(lambda name, op: slow(op))

    with mock.patch.object(providers, "load_ops", load):
        yield


@contextmanager
def gaps() -> Iterator[None]:
    """The core sleeps before each step."""
    step = EngineCore.step

    def late(core: EngineCore) -> Any:
        if core.has_work():
            time.sleep(GAP_SECONDS)
        return step(core)

    with mock.patch.object(EngineCore, "step", late):
        yield


@contextmanager
def neighbour() -> Iterator[int]:
    """A process that computes without pause; yield its id."""
    # By way of a shell, so that it is nobody's child, least of all the engine's.
    shell = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    started = int(subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout)
    try:
        yield started
    finally:
        os.kill(started, signal.SIGKILL)


@contextmanager
def one_cpu() -> Iterator[None]:
    """This process and its threads may use one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def portable() -> Any:
    """Kernels without vector instructions."""
    return mock.patch.dict(os.environ, {"QUIRE_CPU_ISA": "portable"})


def slow_rank(evidence: Evidence) -> Evidence:
    """The steps as four ranks would have taken them, the third at 1.8 times the others'."""
    w = evidence.window
    step = w.parts["model"] / w.steps / 1.8
    return msgspec.structs.replace(evidence, ranks=[[step, step, 1.8 * step, step]] * w.steps)


def slow_tokenizer(folder: Path) -> None:
    """One of bytes, with many rules that each pass over the text; the last shortens it much."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rules = [normalizers.Replace(Regex(rf"(?i)[aeiou]{{3}}\w+z{i}q\b"), "") for i in range(RULES)]
    rules.append(normalizers.Replace(Regex(r"(?:\w+ ){20}"), "w "))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i for i, letter in enumerate(sorted(alphabet))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.normalizer = normalizers.Sequence(rules)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


FAULTS: dict[str, Fault] = {
    "dispatch": Fault(
        "dispatch_overhead",
        "--no-enforce-eager",
        {**OPT, "enforce_eager": True},
        Demand(num_prompts=4, input_len=32, output_len=96),
        slow_dispatch,
    ),
    "bandwidth": Fault(
        "memory_bandwidth",
        "--quantization int8",
        QWEN,
        Demand(num_prompts=1, input_len=16, output_len=64),
    ),
    "gaps": Fault(
        "idle_gaps",
        "--async-scheduling",
        OPT,
        Demand(num_prompts=4, input_len=32, output_len=96),
        gaps,
    ),
    "rank": Fault(
        "rank_imbalance",
        "--num-threads",
        OPT,
        Demand(num_prompts=4, input_len=32, output_len=64),
        edit=slow_rank,
    ),
    "kv": Fault(
        "kv_cache_too_small",
        "--num-gpu-blocks-override",
        {**OPT, "num_gpu_blocks_override": 48},
        Demand(num_prompts=24, input_len=64, output_len=96),
    ),
    "prefix": Fault(
        "prefix_misses",
        "--enable-prefix-caching",
        {**OPT, "enable_prefix_caching": False},
        Demand(num_prompts=12, input_len=1024, output_len=16, prefix_len=960),
    ),
    "thread": Fault(
        "few_threads",
        "--num-threads",
        {**OPT, "num_threads": 1},
        Demand(num_prompts=8, input_len=128, output_len=64),
    ),
    "float32": Fault(
        "wide_weights",
        "--dtype bfloat16",
        {**OPT, "dtype": "float32"},
        Demand(num_prompts=4, input_len=64, output_len=96),
    ),
    "neighbour": Fault(
        "busy_neighbour",
        "--num-threads",
        OPT,
        Demand(num_prompts=4, input_len=32, output_len=128),
        neighbour,
    ),
    "drafter": Fault(
        "poor_drafts",
        "without --speculative-config",
        {**OPT, "speculative_config": json.dumps(POOR_DRAFTER)},
        Demand(num_prompts=4, input_len=32, output_len=96),
    ),
    "seats": Fault(
        "queueing",
        "--max-num-seqs",
        {**OPT, "max_num_seqs": 1},
        Demand(num_prompts=8, input_len=32, output_len=64),
    ),
    "threads": Fault(
        "too_many_threads",
        "--num-threads",
        {**OPT, "num_threads": 4 * detect().cores},
        Demand(num_prompts=8, input_len=32, output_len=64),
    ),
    "affinity": Fault(
        "affinity",
        "taskset",
        OPT,
        Demand(num_prompts=8, input_len=32, output_len=64),
        one_cpu,
    ),
    "reference": Fault(
        "reference_ops",
        "--ops auto",
        {**OPT, "ops": "reference"},
        Demand(num_prompts=4, input_len=32, output_len=32),
    ),
    "isa": Fault(
        "forced_isa",
        "unset QUIRE_CPU_ISA",
        OPT,
        Demand(num_prompts=4, input_len=32, output_len=32),
        portable,
    ),
    "chunks": Fault(
        "small_chunks",
        "--max-num-batched-tokens",
        {**QWEN, "max_num_seqs": 4, "max_num_batched_tokens": 4},
        Demand(num_prompts=2, input_len=256, output_len=4),
    ),
    "tokenizer": Fault(
        "tokenization",
        "--tokenizer-pool-size",
        {"model": "embedded"},
        Demand(num_prompts=80, input_len=800, output_len=4, concurrency=8, text=True),
        served=True,
    ),
}


def served_evidence(args: EngineArgs, demand: Demand) -> Evidence:
    """A server under the load, and what it says of itself meanwhile."""
    from quire.bench.serving.http_client import HTTPClient
    from quire.bench.serving.load import COMPLETIONS_PATH, Load, Request
    from quire.bench.serving.sender import send
    from quire.bench.serving.server_process import running_server

    namespace = argparse.Namespace(**asdict(args), start_timeout=START_TIMEOUT)
    with running_server(namespace) as url:
        load = Load(
            path=COMPLETIONS_PATH,
            requests=[Request(body) for body in request_bodies(args, demand, [0, 0])],
            num_clients=demand.concurrency,
            closed_loop=True,
        )
        clients = threading.Thread(
            target=lambda: asyncio.run(send(load, lambda: HTTPClient(url, {})))
        )
        clients.start()
        time.sleep(0.5)
        try:
            return ask(url, 3.0)
        finally:
            clients.join()


def without_neighbour(args: EngineArgs, change: Change, demand: Demand, repetitions: int) -> Proof:
    """The same engine beside the neighbour and alone, in turns."""
    pairs = []
    with offline_side(args, demand) as one_round:
        one_round(-1)
        for repetition in range(repetitions):
            with neighbour():
                beside = one_round(repetition)
            pairs.append((beside, one_round(repetition + repetitions)))
    return proof_of(change, pairs)


def run(name: str, fault: Fault, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Explain one fault and prove the first change; a row."""
    given = dict(fault.args)
    if name == "tokenizer":
        slow_tokenizer(folder)
        given["tokenizer"] = str(folder)
    engine_args = EngineArgs(**given)
    with fault.inject():
        if fault.served:
            evidence = served_evidence(engine_args, fault.demand)
        else:
            with open_engine(argparse.Namespace(**asdict(engine_args))) as engine:
                warm = replace(fault.demand, num_prompts=1, output_len=4)
                engine.generate(warm.prompts(engine.vocab_size, [7]), warm.output_len)
                evidence = observe(engine, fault.demand, [0, 0])
        evidence = fault.edit(evidence)
        report = explained(evidence)
        first = [change for change in report.changes if change.flag.startswith(fault.flag)][:1]
        proofs = []
        if name not in UNPROVEN and not args.no_proof:
            proofs = prove(
                engine_args,
                first,
                fault.demand,
                repetitions=args.repetitions,
                served=fault.served,
            )
    if name == "neighbour" and first and not args.no_proof:
        proofs = [without_neighbour(engine_args, first[0], fault.demand, args.repetitions)]
    if args.save is not None:
        save(evidence, args.save / f"{name}.json")
    flag = report.changes[0].flag if report.changes else ""
    row: dict[str, Any] = {
        "fault": name,
        "cause": report.verdict.cause,
        "named": report.verdict.cause == fault.cause,
        "flag": flag,
        "right_flag": flag.startswith(fault.flag),
        "share": report.verdict.share,
        "estimated_gain": first[0].estimated_gain if first else None,
        "proven_gain": proofs[0].proven_gain if proofs else None,
        "spread": proofs[0].spread if proofs else None,
        "before": proofs[0].before if proofs else None,
        "after": proofs[0].after if proofs else None,
        "within_30": None,
        "text": report.verdict.text,
    }
    if proofs and first:
        row["within_30"] = abs(first[0].estimated_gain - proofs[0].proven_gain) <= 0.3 * abs(
            proofs[0].proven_gain
        )
    return row


def save(evidence: Evidence, path: Path) -> None:
    """Layers summed up, and without paths and names of other programs."""
    args = replace(evidence.args, tokenizer=None)
    config = replace(evidence.config, model_path=args.model, tokenizer_path=None, marks_path=None)
    path.parent.mkdir(parents=True, exist_ok=True)
    ops = evidence.ops and msgspec.structs.replace(evidence.ops, ops=summed(evidence.ops.ops))
    window = evidence.window
    window = msgspec.structs.replace(window, arrivals=window.arrivals[-KEPT_ARRIVALS:])
    host = evidence.host and msgspec.structs.replace(evidence.host, neighbours=[])
    kept = msgspec.structs.replace(
        evidence, args=args, config=config, ops=ops, window=window, host=host
    )
    msgspec.structs.replace(kept, halves=[]).save(path)


def summed(ops: Sequence[OpTime]) -> list[OpTime]:
    """One operation in place of the same of all layers."""
    sums: dict[tuple[str, str], OpTime] = {}
    for op in ops:
        op = msgspec.structs.replace(op, module=re.sub(r"layers\.\d+", "layers.0", op.module))
        if (same := sums.get((op.name, op.module))) is not None:
            totals = ("calls", "seconds", "nbytes", "flops", "rows")
            op = msgspec.structs.replace(
                op, **{name: getattr(op, name) + getattr(same, name) for name in totals}
            )
        sums[op.name, op.module] = op
    return list(sums.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--no-proof", action="store_true", help="explain alone")
    parser.add_argument("--json", type=Path, help="a .jsonl file, to append a line a fault")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the evidence")
    args = parser.parse_args()
    if load_limits(detect().cores) is None:
        measure_and_keep()
    for name in args.fault:
        with tempfile.TemporaryDirectory() as folder:
            row = run(name, FAULTS[name], args, Path(folder))
        shown = {
            key: f"{row[key]:+.1%}" if row[key] is not None else "-"
            for key in ("estimated_gain", "proven_gain")
        }
        print(
            f"{name:<10} {row['cause']:<19}{'' if row['named'] else 'WRONG '}"
            f"{row['flag']:<28} estimated {shown['estimated_gain']:>8}  "
            f"proven {shown['proven_gain']:>8}  within 30 %: {row['within_30']}\n"
            f"           {row['text']}",
            flush=True,
        )
        if args.json is not None:
            write_json(args.json, [row])


if __name__ == "__main__":
    main()
