"""Every bar that the CPU kernels are held to, measured on this machine, as a table.

    python benchmarks/cpu_bars.py --peer vllm=PYTHON --peer llama-cpp-python=PYTHON
        [--rows NAME …] [--repetitions 3] [--json FILE.jsonl]

A row is printed, and written to FILE, as soon as it is measured; one that fails is named, and the
others go on. Where a bar is missed, the same load is profiled, and each operation's time is set
against what the machine allows it. Wants a quiet machine for half an hour; the peers of a row take
turns with Quire, in environments of their own (see README.md, Peers).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.bars import where
from benchmarks.bars.bar import Against, Bar, Floor, Load, Memory, Setup, Start
from benchmarks.bars.command import AMX, Run, kernels_isa
from benchmarks.bars.measure import Bench
from benchmarks.bars.pool import Pool
from quire.bench.compare import given_peers
from quire.bench.contest import driver_home
from quire.bench.machine import circumstances
from quire.bench.main import cleaning_up_when_terminated
from quire.bench.results.report import Row, jsonl, write_json
from quire.core.errors import QuireError
from quire.resolve.flags import count

QWEN = Setup("qwen3-0.6b")
QWEN_INT8 = Setup("qwen3-0.6b", "int8")
QWEN_INT4 = Setup("qwen3-0.6b", "int4")
QWEN_INT8_KV = Setup("qwen3-0.6b", "int8", "int8")
A3B_INT4, OLMOE_INT4 = Setup("qwen3-30b-a3b", "int4"), Setup("olmoe-1b-7b", "int4")
HYBRID, HYBRID_INT4 = Setup("qwen3-next-4l"), Setup("qwen3-next-4l", "int4")
OPT, GPT2 = Setup("opt-125m"), Setup("gpt2")
ONE = Load(1, 128, 64)


def _peers(setup: Setup, *names: str) -> tuple[tuple[str, Setup], ...]:
    return tuple((name, setup) for name in names)


def _floor(name: str, setup: Setup, load: Load, bound: float) -> Bar:
    streams = f"{load.count} stream{'s' if load.count > 1 else ''}"
    what = f"{setup.model}, {setup}, decode, {streams}: share of the floor"
    return Bar(f"floor-{name}", what, bound, "share", Floor(setup, load))


def _decode(name: str, setup: Setup, bound: float) -> Bar:
    what = f"{setup.model}, {setup}, decode, 1 stream / best peer at the same bits"
    subject = Against(setup, ONE, "decode", _peers(setup, "vllm", "llama-cpp-python"))
    return Bar(f"decode-{name}", what, bound, "times", subject)


def _prefill(name: str, setup: Setup, tokens: int, bound: float) -> Bar:
    what = f"{setup.model}, {setup}, prefill {tokens} / vLLM in bfloat16"
    subject = Against(setup, Load(1, tokens, 2), "prefill", _peers(QWEN, "vllm"))
    return Bar(f"prefill-{tokens}-{name}", what, bound, "times", subject)


def _against_llama(name: str, setup: Setup, load: Load, task: Literal["prefill", "decode"]) -> Bar:
    what = f"{setup.model}, {setup}, {task} {load.input_len} / llama.cpp at the same bits"
    alone, decode = setup == A3B_INT4, 2.0 if setup.model == HYBRID.model else 1.3
    subject = Against(setup, load, task, _peers(setup, "llama-cpp-python"), alone=alone)
    return Bar(f"{task}-{name}", what, {"decode": decode, "prefill": 1.5}[task], "times", subject)


def _batch(name: str, setup: Setup, peer: Setup, bound: float) -> Bar:
    what = f"{setup.model}, {setup}, 32 x (128 + 128) / vLLM in {peer}"
    subject = Against(setup, Load(32, 128, 128), "batch", _peers(peer, "vllm"))
    return Bar(f"batch-{name}", what, bound, "times", subject)


def _start(cold: bool, bound: float) -> Bar:
    what = f"{QWEN.model} from disk to its first token, packed weights {'not ' * cold}kept"
    subject = Start(QWEN.model, cold)
    return Bar(f"start-{'cold' if cold else 'warm'}", what, bound, "seconds", subject, at_most=True)


def _memory(name: str, setup: Setup, *, stored: bool = False) -> Bar:
    kind = f"{setup}, from disk with its tokenizer" if stored else str(setup)
    what = f"{setup.model}, {kind}: peak RSS above weights and KV cache"
    return Bar(f"rss-{name}", what, 110e6, "bytes", Memory(setup, ONE, stored), at_most=True)


_GPT2 = Against(GPT2, Load(1, 128, 2), "prefill", _peers(GPT2, "torch"), as_time=True)
BARS = (
    _floor("bf16", QWEN, ONE, 0.90),
    _floor("int8", QWEN_INT8, ONE, 0.90),
    _floor("int4", QWEN_INT4, ONE, 0.85),
    _floor("64-streams", QWEN_INT8_KV, Load(64, 240, 33), 0.70),
    _floor("opt", OPT, Load(1, 128, 128), 0.85),
    _start(cold=True, bound=4.0),
    _start(cold=False, bound=1.2),
    _memory("bf16", QWEN),
    _memory("int8", QWEN_INT8),
    _memory("stored", QWEN, stored=True),
    Bar(
        *("prefill-gpt2", "gpt2, bfloat16, one prompt of 128: time / dense SDPA layers in torch"),
        *(1.05, "times", _GPT2),
        at_most=True,
    ),
    _batch("opt", OPT, OPT, 1.8),
    _decode("bf16", QWEN, 1.25),
    _prefill("bf16", QWEN, 512, 1.6),
    _prefill("bf16", QWEN, 2048, 1.6),
    _prefill("int8", QWEN_INT8, 512, 2.5),
    _prefill("int8", QWEN_INT8, 2048, 2.3),
    _batch("int8", QWEN_INT8_KV, QWEN, 2.2),
    _decode("int8", QWEN_INT8, 1.0),
    _decode("int4", QWEN_INT4, 1.6),
    _floor("olmoe", OLMOE_INT4, ONE, 0.80),
    _against_llama("olmoe", OLMOE_INT4, ONE, "decode"),
    _against_llama("olmoe", OLMOE_INT4, Load(1, 512, 2), "prefill"),
    _floor("a3b", A3B_INT4, ONE, 0.80),
    _against_llama("a3b", A3B_INT4, ONE, "decode"),
    _against_llama("a3b", A3B_INT4, Load(1, 512, 2), "prefill"),
    _floor("hybrid-bf16", HYBRID, ONE, 0.80),
    _against_llama("hybrid-bf16", HYBRID, ONE, "decode"),
    _against_llama("hybrid-bf16", HYBRID, Load(1, 512, 2), "prefill"),
    _floor("hybrid-int4", HYBRID_INT4, ONE, 0.80),
    _against_llama("hybrid-int4", HYBRID_INT4, ONE, "decode"),
    _against_llama("hybrid-int4", HYBRID_INT4, Load(1, 512, 2), "prefill"),
)
"""In the order in which they are measured: an engine is kept until no later row wants it."""


def checkpoint(files: Path, preset: str) -> Path:
    """The preset as a folder of weights, made if it is not there."""
    folder = files / preset
    if not (folder / "tokenizer.json").exists():  # what is written last
        program = Path(__file__).with_name("make_checkpoint.py")
        subprocess.run([sys.executable, program, preset, folder], check=True, stdout=sys.stderr)
    return folder


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    add = found.add_argument
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="the interpreter of an environment that has vllm or llama-cpp-python",
    )
    names = [bar.name for bar in BARS]
    add("--rows", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--repetitions", type=count, default=3, metavar="N", help="(default: %(default)s)")
    add(
        "--files",
        type=Path,
        default=Path(tempfile.gettempdir()) / "quire-peers",
        metavar="DIR",
        help="where made-up weights are kept, as files (default: %(default)s)",
    )
    add("--json", type=jsonl, metavar="FILE", help="a .jsonl file, to append each row to")
    add("--note", metavar="TEXT", help="kept in the rows, for later readers")
    return found


def main() -> int:
    args = parser().parse_args()
    bars = [bar for bar in BARS if args.rows is None or bar.name in args.rows]
    told = circumstances("cpu_bars", "python benchmarks/cpu_bars.py")
    told |= {"note": args.note} if args.note is not None else {}

    def keep(row: Row) -> None:
        if args.json is not None:
            write_json(args.json, row | told)

    machine, isa = told["machine"], kernels_isa()
    title = f"CPU bars: {machine['cpu']}, {machine['cores']} cores, {isa}, commit {told['commit']}"
    wanted = [bar.subject for bar in bars if isinstance(bar.subject, Against)]
    with cleaning_up_when_terminated(), driver_home() as home:
        try:
            pythons = given_peers(args.peer) | {"torch": sys.executable}
        except QuireError as error:
            sys.exit(str(error))
        pool = Pool(pythons, home, args.files, wanted)
        bench = Bench(pool, args.repetitions, partial(checkpoint, args.files))
        try:
            run = Run(bench, where.measure, keep, amx=isa.startswith(AMX))
            return 0 if run.all(bars, title, sys.stdout) else 1
        except KeyboardInterrupt:
            return 130
        finally:
            pool.stop()


if __name__ == "__main__":
    sys.exit(main())
