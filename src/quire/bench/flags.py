"""The flags of all benchmarks except `serve` (see `serve_flags`)."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from quire.bench import choices

KERNEL_FAMILIES = (
    *("embedding", "norm", "quantize", "gemm", "rope_kv_write", "attention", "recurrent"),
    *("activation", "lora", "moe", "sampling", "pack"),
)
ABLATIONS = (
    *("async-scheduling", "multi-step", "plan", "int8-kv-cache"),
    *("speculative-decoding", "prefix-caching", "chunked-prefill"),
)
PEER_NAMES = ("transformers", "vllm", "llama-cpp-python", "torch")
TASKS = ("prefill", "decode", "batch", "startup")
DEFAULT = "(default: %(default)s)"


def latency(group: argparse._ArgumentGroup) -> None:
    _lengths(group)
    group.add_argument("--batch-size", type=count, default=1, metavar="N", help=DEFAULT)
    group.add_argument(
        "--lora-rank",
        type=count,
        default=0,
        metavar="N",
        help="run each batch again with an adapter of this rank on every layer, and report the "
        "cost (default: none)",
    )


def throughput(group: argparse._ArgumentGroup) -> None:
    _lengths(group)
    group.add_argument("--num-prompts", type=count, default=64, metavar="N", help=DEFAULT)


def startup(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--input-len", type=count, default=16, metavar="N", help=DEFAULT)


def start_timeout(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="time limit for the started server to become ready " + DEFAULT,
    )


def overhead(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--streams",
        type=count,
        nargs="+",
        default=[1, 8, 32, 128],
        metavar="N",
        help="numbers of concurrent streams; one measurement each (default: 1 8 32 128)",
    )
    add("--input-len", type=count, default=16, metavar="N", help="prompt tokens " + DEFAULT)
    add("--output-len", type=count, default=128, metavar="N", help="tokens per stream " + DEFAULT)
    start_timeout(group)


def interference(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-streams",
        type=count,
        default=8,
        metavar="N",
        help="requests that decode during the whole round " + DEFAULT,
    )
    add(
        "--input-len",
        type=count,
        default=128,
        metavar="N",
        help="prompt tokens per stream " + DEFAULT,
    )
    add(
        "--idle-tokens",
        type=count,
        default=64,
        metavar="N",
        help="tokens per stream before the first arrival and after the last, as the baseline "
        + DEFAULT,
    )
    add(
        "--num-arrivals",
        type=count,
        default=2,
        metavar="N",
        help="prompts that arrive, each after the first token of the one before " + DEFAULT,
    )
    add(
        "--arrival-len",
        type=count,
        default=4096,
        metavar="N",
        help="tokens of an arriving prompt " + DEFAULT,
    )
    add(
        "--budgets",
        nargs="+",
        type=_budget,
        metavar="N",
        help="values of --max-num-batched-tokens to compare, one row each; `auto` is the engine's "
        "choice (default: the value of --max-num-batched-tokens)",
    )


def kernels(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        default=["qwen3-0.6b"],
        help="presets or models whose shapes to use (default: qwen3-0.6b)",
    )
    add("--op", nargs="+", choices=KERNEL_FAMILIES, help="families of ops (default: all)")
    add(
        "--rows",
        type=count,
        nargs="+",
        default=[1, 4, 16, 64, 512],
        metavar="N",
        help="tokens per step; for decode attention, sequences (default: 1 4 16 64 512)",
    )
    add(
        "--context",
        type=count,
        nargs="+",
        default=[256, 2048],
        metavar="N",
        help="tokens of context for decode attention (default: 256 2048)",
    )
    add("--isa", nargs="+", metavar="NAME", help="instruction sets (default: the most capable)")
    choices.add_flags(group, dtype=["bfloat16"])
    add("--num-threads", type=count, metavar="N", help="(default: one per core)")
    add("--block-size", type=count, default=16, metavar="N", help="tokens per KV block " + DEFAULT)
    add(
        "--max-num-seqs",
        type=count,
        default=64,
        metavar="N",
        help="maximum rows of logits and decoding sequences " + DEFAULT,
    )
    add("--torch", action="store_true", help="also time torch's own ops (needs torch)")
    add(
        "--seconds",
        type=float,
        default=0.03,
        metavar="S",
        help="time per repetition; at least one call runs " + DEFAULT,
    )
    add("--seed", type=int, default=0, metavar="N", help=DEFAULT)


def ablate(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--switch", nargs="+", choices=ABLATIONS, default=ABLATIONS, help="(default: all)")
    _lengths(group)
    add("--num-streams", type=count, default=8, metavar="N", help="decoding streams " + DEFAULT)
    add(
        "--prefix-len",
        type=count,
        default=1024,
        metavar="N",
        help="tokens of a shared prefix and of a long prompt " + DEFAULT,
    )


def compare(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"a peer ({', '.join(PEER_NAMES)}) and the Python interpreter of its environment; may "
        "be repeated. Peers in Quire's own environment are found automatically",
    )
    add("--peers-only", action="store_true", help="compare only with the peers of --peer")
    add("--tasks", nargs="+", choices=TASKS, help="(default: all; startup with weights on disk)")
    _lengths(group)
    add(
        "--num-prompts",
        type=count,
        default=16,
        metavar="N",
        help="concurrent prompts of the task batch " + DEFAULT,
    )
    add(
        "--files",
        type=Path,
        default=Path(tempfile.gettempdir()) / "quire-peers",
        metavar="DIR",
        help="folder for a preset's weights as GGUF, for peers that read only GGUF " + DEFAULT,
    )


def quality(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        default=["embedded", "embedded-draft"],
        help="built-in names, folders, files or hub ids (default: embedded embedded-draft)",
    )
    add(
        "--original",
        metavar="MODEL",
        help="reference for all other models, such as the one they were quantized from (default: "
        "the first combination of each model)",
    )
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="text to predict, with lines of --- between documents (default: stories that come "
        "with Quire)",
    )
    choices.add_flags(group)
    add("--num-threads", type=count, metavar="N", help="(default: the engine's choice)")


def _lengths(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input-len", type=count, default=128, metavar="N", help="prompt tokens " + DEFAULT
    )
    group.add_argument(
        "--output-len", type=count, default=64, metavar="N", help="tokens to generate " + DEFAULT
    )


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _budget(text: str) -> str:
    return text if text == "auto" else str(count(text))
