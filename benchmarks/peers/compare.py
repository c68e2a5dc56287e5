"""Run Quire and its peers in turns on the same work; print medians, spreads and ratios.

    python benchmarks/peers/compare.py --peer vllm_cpu=PYTHON --peer llama_cpp_c=PYTHON \\
        --bars decode-bf16 decode-int8 --rounds 3 --json FILE.jsonl

PYTHON is the interpreter of the environment in which that peer is installed; Quire runs in this
one. A round runs each engine once, in a process of its own, the order reversed in every other
round. A ratio is taken within a round, so that what slows the machine for a while slows both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bench.report import Row, write_json

_HERE = Path(__file__).parent
_SCRIPTS = ("vllm_cpu", "llama_cpp_c", "transformers_generate")
_OURS = "quire"


@dataclass(frozen=True, slots=True)
class Bar:
    """One comparison.

    Attributes:
        metric: field of the rows; rates are better high, seconds better low.
        flags: what every engine is asked to do.
        ours: Quire's own flags.
        theirs: peers' scripts with their own flags; a script may stand there more than once.
    """

    bench: str
    metric: str
    flags: str
    ours: str = ""
    theirs: tuple[str, ...] = ()


_INT8, _INT4 = "--quantization int8", "--quantization int4"
_DECODE = "--input-len 128 --output-len 64"
_OPT = "--model opt-125m " + _DECODE


def _prefill(tokens: int) -> str:
    return f"--input-len {tokens} --output-len 2"


def _each(flags: str, *scripts: str) -> tuple[str, ...]:
    return tuple(f"{script} {flags}".strip() for script in scripts)


_BF16_PEERS = _each("", "vllm_cpu", "llama_cpp_c", "transformers_generate")
_INT8_PEERS = _each(_INT8, "vllm_cpu", "llama_cpp_c")
_BEST_PEERS = ("vllm_cpu", *_INT8_PEERS)
BARS = {
    "decode-bf16": Bar("latency", "decode_tok_s", _DECODE, "", _BF16_PEERS),
    "decode-int8": Bar("latency", "decode_tok_s", _DECODE, _INT8, _INT8_PEERS),
    "decode-int4": Bar(
        *("latency", "decode_tok_s", _DECODE, _INT4, _each(_INT4, "vllm_cpu", "llama_cpp_c")),
    ),
    "prefill-512-bf16": Bar("latency", "prefill_tok_s", _prefill(512), "", _BF16_PEERS),
    "prefill-2048-bf16": Bar("latency", "prefill_tok_s", _prefill(2048), "", _BF16_PEERS),
    "prefill-512-int8": Bar("latency", "prefill_tok_s", _prefill(512), _INT8, _BEST_PEERS),
    "prefill-2048-int8": Bar("latency", "prefill_tok_s", _prefill(2048), _INT8, _BEST_PEERS),
    "throughput": Bar(
        "throughput",
        "output_tok_s",
        "--num-prompts 32 --input-len 128 --output-len 128",
        f"{_INT8} --kv-cache-dtype int8",
        _BEST_PEERS,
    ),
    "opt-decode": Bar(
        *("latency", "decode_tok_s", _OPT, "", _each("", "vllm_cpu", "transformers_generate")),
    ),
    "opt-batch-32": Bar(
        "latency",
        "decode_tok_s",
        f"{_OPT} --batch-size 32",
        "--max-num-batched-tokens 4096",
        _each("", "vllm_cpu", "transformers_generate"),
    ),
    "gpt2-prefill": Bar(
        "latency",
        "prefill_tok_s",
        "--model gpt2 --dtype float32 --input-len 128 --output-len 2",
        "",
        _each("", "transformers_generate"),
    ),
    "startup": Bar("startup", "start_to_first_token_s", "--input-len 16", "", _BF16_PEERS),
}


def main() -> None:
    """Run the bars that were asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peer", action="append", default=[], metavar="SCRIPT=PYTHON", help="may be repeated")
    add("--bars", nargs="+", choices=list(BARS), default=list(BARS))
    add("--rounds", type=int, default=3, help="processes of each engine (default: 3)")
    add("--repetitions", type=int, default=3, help="within a process (default: 3)")
    add("--checkpoint", type=Path, help="folder of weights for startup (see write_checkpoint.py)")
    add("--output-len", type=int, help="instead of each bar's own, to try the scripts out")
    add("--json", type=Path, required=True, metavar="FILE.jsonl", help="append the rows there")
    add("--note", help="kept in the rows")
    args = parser.parse_args()
    peers = dict(_peer(text, parser) for text in args.peer)
    if args.json.suffix != ".jsonl":
        parser.error(f"--json {args.json.name}: rows are appended to a .jsonl file")
    if "startup" in args.bars and args.checkpoint is None:
        if args.bars != list(BARS):
            parser.error("the bar startup needs --checkpoint")
        args.bars.remove("startup")
    for name in args.bars:
        bar = BARS[name]
        engines = [f"{_OURS} {bar.ours}".strip()]
        engines += [text for text in bar.theirs if text.split()[0] in peers]
        rows = compare(name, engines, peers, args)
        print_comparison(name, bar.metric, rows)


def compare(
    name: str, engines: Sequence[str], peers: dict[str, str], args: argparse.Namespace
) -> dict[str, list[Row]]:
    """Engine → its rows, one a round. An engine that fails once is left out of the rest.

    Raises:
        SystemExit: where Quire itself fails.
    """
    rows: dict[str, list[Row]] = {engine: [] for engine in engines}
    for index in range(args.rounds):
        for engine in list(rows)[:: -1 if index % 2 else 1]:
            command = _command(name, engine, peers, args)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "row.jsonl"
                done = subprocess.run(
                    [*command, "--json", str(path)], capture_output=True, text=True, check=False
                )
                if done.returncode == 0:
                    row: Row = {"bar": name, "round": index, **json.loads(path.read_text())}
                    rows[engine].append(row)
                    write_json(args.json, row)
                    continue
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            print(f"{name}: {engine} failed and is left out:\n{tail}", file=sys.stderr)
            if engine.split()[0] == _OURS:
                raise SystemExit(1)
            del rows[engine]
    return rows


def print_comparison(name: str, metric: str, rows: dict[str, list[Row]]) -> None:
    """Each engine's median, lowest and highest, and how many times better Quire is.

    The ratio is above 1 where Quire is faster, in rates as in seconds.
    """
    values = {engine: [row[metric] for row in found] for engine, found in rows.items()}
    ours, *_ = values.values()
    print(f"{name}: {metric}")
    print(f"  {'':32} {'median':>10} {'min':>10} {'max':>10} {'spread':>7}  quire is (min - max)")
    for engine, found in values.items():
        median, low, high = statistics.median(found), min(found), max(found)
        line = f"  {engine:32} {median:10.3f} {low:10.3f} {high:10.3f} {(high - low) / median:7.1%}"
        if found is not ours:
            pairs = zip(ours, found, strict=True)
            ratios = [a / b if metric.endswith("tok_s") else b / a for a, b in pairs]
            middle = statistics.median(ratios)
            line += f"  {middle:.2f}x ({min(ratios):.2f} - {max(ratios):.2f})"
        print(line, flush=True)


def _command(name: str, engine: str, peers: dict[str, str], args: argparse.Namespace) -> list[str]:
    """The command line of one process, without --json."""
    bar = BARS[name]
    script, *own = engine.split()
    flags = bar.flags.split()
    if "--model" not in flags:
        flags = ["--model", "qwen3-0.6b", *flags]
    if "--dtype" not in flags:
        flags += ["--dtype", "bfloat16"]
    flags += [*own, "--repetitions", str(args.repetitions)]
    if args.output_len is not None and bar.bench != "startup":
        flags += ["--output-len", str(args.output_len)]
    if args.note is not None:
        flags += ["--note", args.note]
    if bar.bench == "startup" and script != "llama_cpp_c":  # which has its own file of the preset
        flags[flags.index("--model") + 1] = str(args.checkpoint.resolve())
    if script != _OURS:
        return [peers[script], str(_HERE / f"{script}.py"), bar.bench, *flags]
    if bar.bench != "startup":
        flags += ["--load-format", "dummy"]
    return [sys.executable, "-m", "quire.cli.main", "bench", bar.bench, *flags]


def _peer(text: str, parser: argparse.ArgumentParser) -> tuple[str, Any]:
    script, _, python = text.partition("=")
    if script not in _SCRIPTS or not python:
        parser.error(f"--peer {text}: write SCRIPT=PYTHON, SCRIPT one of {', '.join(_SCRIPTS)}")
    return script, python


if __name__ == "__main__":
    main()
