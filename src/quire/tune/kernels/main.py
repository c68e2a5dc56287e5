"""The flags of `quire tune kernels`. The search is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

OPS = ("gemm", "attention")
_DEFAULT = "(default: %(default)s)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from quire.bench import choices

    add = parser.add_argument
    add(
        "--model",
        nargs="+",
        default=["qwen3-0.6b"],
        help="presets or models whose shapes to tune (default: qwen3-0.6b)",
    )
    add("--op", nargs="+", choices=OPS, default=OPS, help="(default: both)")
    add(
        "--rows",
        type=_count,
        nargs="+",
        default=[1, 8, 32, 128],
        metavar="N",
        help="ends of the row ranges that are tuned separately: 1 8 32 means 1, 2 to 8, and 9 to "
        "32 (default: 1 8 32 128)",
    )
    add(
        "--context",
        type=_count,
        nargs="+",
        default=[1024],
        metavar="N",
        help="tokens of context for attention (default: 1024)",
    )
    choices.add_flags(
        parser.add_argument_group("types"),
        dtype=["bfloat16"], quantization=["none"], kv_cache_dtype=["auto"],
    )  # fmt: skip
    add("--isa", metavar="NAME", help="instruction set (default: the most capable)")
    add("--num-threads", type=_count, metavar="N", help="(default: one per core)")
    add(
        "--jobs",
        type=_count,
        default=1,
        metavar="N",
        help="parallel searches, each on its own cores; run one per socket, because searches on "
        "one socket share its memory bandwidth " + _DEFAULT,
    )
    add("--repetitions", type=_count, default=5, metavar="N", help="rounds to time " + _DEFAULT)
    add(
        "--seconds",
        type=float,
        default=0.02,
        metavar="S",
        help="time per call and round " + _DEFAULT,
    )
    add("--seed", type=int, default=0, metavar="N", help=_DEFAULT)
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for the tuning file (default: the cache, from which engines load it)",
    )


def run(args: argparse.Namespace) -> int:
    """Search, print each shape's gain, and write the tuning file."""
    from quire.tune.kernels.command import tune

    return tune(args)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value
