"""The flags of `quire tune kernels`. The search is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.resolve.flags import Flags, count

OPS = ("gemm", "attention", "recurrent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from quire.bench import choices

    add = Flags(parser)
    add("--model", ["qwen3-0.6b"], "presets or models whose shapes to tune")
    add("--op", OPS, "what to tune (default: all; recurrent layers on a GPU alone)", choices=OPS)
    devices = ("auto", "cpu", "cuda")
    add("--device", "auto", "whose kernels to tune: a GPU's if there is one", choices=devices)
    add(
        "--rows",
        None,
        "ends of the row ranges that are tuned separately: 1 8 32 means 1, 2 to 8, and 9 to 32 "
        "(default: 1 8 32 128; on a GPU 1 16 64 255 2048)",
        type=count,
        nargs="+",
    )
    add("--context", [1024], "tokens of context for attention")
    choices.add_flags(
        Flags(parser.add_argument_group("types")),
        dtype=["bfloat16"], quantization=["none"], kv_cache_dtype=["auto"],
    )  # fmt: skip
    add("--isa", None, "instruction set (default: the most capable)", metavar="NAME")
    add("--num-threads", None, "compute threads (default: one per core)", type=count)
    add(
        "--jobs",
        1,
        "parallel searches, each on its own cores; run one per socket, because searches on one "
        "socket share its memory bandwidth",
    )
    add("--repetitions", 5, "rounds to time")
    add("--seconds", 0.02, "time per call and round", metavar="S")
    add("--seed", 0, "seed of the random weights and inputs", type=int)
    text = "folder for the tuning file (default: the cache, from which engines load it)"
    add("--output", None, text, type=Path, metavar="DIR")


def run(args: argparse.Namespace) -> int:
    """Search, print each shape's gain, and write the tuning file."""
    from quire.tune.kernels.command import tune

    return tune(args)
