"""Faults inside of an engine: does `quire explain` name each, and does its change gain as much?

    python -m benchmarks.explain_faults [--fault NAME ...] [--repetitions R] [--json FILE]
        [--save DIR]

A host that submits operations slowly, weights that only bandwidth can move, products that only
arithmetic can speed up, gaps between steps, and a rank that is slower than the others (of which
only the times are made up). They need the engine in this process. Faults of settings, clients and
the system are in `explain_served`, which also prints the table of gains. --save keeps the evidence
for the tests.
"""

from __future__ import annotations

import argparse
import re
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
from quire.bench.kernels.limits import known_or_measured
from quire.bench.prove import prove
from quire.bench.results.report import jsonl, write_json
from quire.core.op_profile import OpTime
from quire.engine.core import EngineCore
from quire.explain.evidence import Evidence
from quire.explain.report import Change, Proof
from quire.explain.whatif import explained
from quire.ops import providers
from quire.ops.interface import Ops
from quire.resolve.arguments import EngineArgs

OPT: dict[str, Any] = {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"}
QWEN = {**OPT, "model": "qwen3-0.6b", "max_model_len": 2048}
KEPT_ARRIVALS = 32
DISPATCH_SECONDS, GAP_SECONDS = 100e-6, 8e-3


@dataclass(frozen=True)
class Fault:
    """An engine with something wrong, a load that shows it, and the right answer.

    Attributes:
        inject: what else is in force while its engines run.
        edit: the evidence as a machine with the fault would give it; then nothing is proven.
    """

    cause: str
    flag: str
    args: dict[str, Any]
    demand: Demand
    inject: Callable[[], Any] = nullcontext
    edit: Callable[[Evidence], Evidence] | None = field(default=None)


@contextmanager
def slow_dispatch() -> Iterator[None]:
    """Let each operation wait before it runs, as for a kernel's launch."""
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
    """Let the core sleep before each step."""
    step = EngineCore.step

    def late(core: EngineCore) -> Any:
        if core.has_work():
            time.sleep(GAP_SECONDS)
        return step(core)

    with mock.patch.object(EngineCore, "step", late):
        yield


def slow_rank(evidence: Evidence) -> Evidence:
    """Return four ranks, the third of which takes 1.8 times as long as the others."""
    assert evidence.ops is not None
    waited = evidence.ops.model_seconds * (1.0 - 1.0 / 1.8)
    ops = msgspec.structs.replace(evidence.ops, rank_waits=[waited, waited, 0.0, waited])
    return msgspec.structs.replace(evidence, ops=ops)


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
    "products": Fault(
        "compute",
        "--quantization int8",
        OPT,
        Demand(num_prompts=8, input_len=512, output_len=2),
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
}


def run(fault: Fault, repetitions: int, kept: Path | None) -> dict[str, Any]:
    """Explain one fault and prove the first change; return the row."""
    engine_args = EngineArgs(**fault.args)
    with fault.inject():
        with open_engine(argparse.Namespace(**asdict(engine_args))) as engine:
            warm = replace(fault.demand, num_prompts=1, output_len=4)
            engine.generate(warm.prompts(engine.vocab_size, [7]), warm.output_len)
            evidence = observe(engine, fault.demand, [0, 0])
        if fault.edit is not None:
            evidence = fault.edit(evidence)
        report = explained(evidence)
        first = [change for change in report.changes if change.flag.startswith(fault.flag)][:1]
        proofs = []
        if fault.edit is None and repetitions:
            proofs = prove(engine_args, first, fault.demand, repetitions=repetitions, served=False)
    if kept is not None:
        save(evidence, kept)
    row: dict[str, Any] = {
        "cause": report.verdict.cause,
        "named": report.verdict.cause == fault.cause,
        "share": report.verdict.share,
        "text": report.verdict.text,
    }
    return row | (gained(first[0], proofs[0]) if proofs else {})


def gained(change: Change, proof: Proof) -> dict[str, Any]:
    """Return the fields of a row that compare an estimate with its proof."""
    return {
        "flag": change.flag,
        "metric": change.metric,
        "estimated_gain": change.estimated_gain,
        "uncertainty": change.uncertainty,
        "at_least": change.at_least,
        "simulated": change.simulated,
        "proven_gain": proof.proven_gain,
        "spread": proof.spread,
        "before": proof.before,
        "after": proof.after,
    }


def save(evidence: Evidence, path: Path) -> None:
    """Write the evidence with its layers summed up, and without paths and names of programs."""
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
    """Return one operation in place of the same one of all layers."""
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
    parser.add_argument("--repetitions", type=int, default=3, help="of each proof; 0: no proof")
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a line per fault")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the evidence")
    args = parser.parse_args()
    known_or_measured()
    for name in args.fault:
        kept = args.save / f"{name}.json" if args.save is not None else None
        row = {"fault": name} | run(FAULTS[name], args.repetitions, kept)
        print(msgspec.json.encode(row).decode(), flush=True)
        if args.json is not None:
            write_json(args.json, [row])


if __name__ == "__main__":
    main()
