"""The flags of each benchmark but `serve`, which has `serve_flags`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from quire.bench import choices

KERNEL_FAMILIES = (
    *("embedding", "norm", "quantize", "gemm", "rope_kv_write", "attention", "activation"),
    *("lora", "moe", "sampling", "pack"),
)
ABLATIONS = (
    *("async-scheduling", "multi-step", "plan", "int8-kv-cache"),
    *("prefix-caching", "chunked-prefill"),
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
        help="after each batch, the same with an adapter of this rank on every layer; the row "
        "tells what it costs (default: none)",
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
        help="how long the server started here may take to be ready " + DEFAULT,
    )


def overhead(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--streams",
        type=count,
        nargs="+",
        default=[1, 8, 32, 128],
        metavar="N",
        help="at once; one measurement each (default: 1 8 32 128)",
    )
    add("--input-len", type=count, default=16, metavar="N", help="prompt tokens " + DEFAULT)
    add("--output-len", type=count, default=128, metavar="N", help="of a stream " + DEFAULT)
    start_timeout(group)


def interference(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-streams",
        type=count,
        default=8,
        metavar="N",
        help="requests that decode all the while " + DEFAULT,
    )
    add("--input-len", type=count, default=128, metavar="N", help="a stream's prompt " + DEFAULT)
    add(
        "--idle-tokens",
        type=count,
        default=64,
        metavar="N",
        help="tokens of each stream before the first arrival and after the last, as the measure "
        + DEFAULT,
    )
    add(
        "--num-arrivals",
        type=count,
        default=2,
        metavar="N",
        help="prompts that arrive, each when the one before has its token " + DEFAULT,
    )
    add("--arrival-len", type=count, default=4096, metavar="N", help="their tokens " + DEFAULT)
    add(
        "--budgets",
        nargs="+",
        type=_budget,
        metavar="N",
        help="values of --max-num-batched-tokens to compare, a row each; `auto` is the engine's "
        "choice (default: what --max-num-batched-tokens says)",
    )


def kernels(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        default=["qwen3-0.6b"],
        help="presets or models whose shapes to take (default: qwen3-0.6b)",
    )
    add("--op", nargs="+", choices=KERNEL_FAMILIES, help="families of operations (default: all)")
    add(
        "--rows",
        type=count,
        nargs="+",
        default=[1, 4, 16, 64, 512],
        metavar="N",
        help="tokens of a step; sequences, where attention decodes (default: 1 4 16 64 512)",
    )
    add(
        "--context",
        type=count,
        nargs="+",
        default=[256, 2048],
        metavar="N",
        help="tokens of a sequence, where attention decodes (default: 256 2048)",
    )
    add("--isa", nargs="+", metavar="NAME", help="instruction sets (default: the most capable)")
    choices.add_flags(group, dtype=["bfloat16"])
    add("--num-threads", type=count, metavar="N", help="(default: one a core)")
    add("--block-size", type=count, default=16, metavar="N", help="of the KV cache " + DEFAULT)
    add(
        "--max-num-seqs",
        type=count,
        default=64,
        metavar="N",
        help="most rows of logits, and most decoding sequences, to measure " + DEFAULT,
    )
    add("--torch", action="store_true", help="also time torch's own operations (needs torch)")
    add(
        "--seconds",
        type=float,
        default=0.03,
        metavar="S",
        help="of a repetition; one call at least " + DEFAULT,
    )
    add("--seed", type=int, default=0, metavar="N", help=DEFAULT)


def ablate(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--switch", nargs="+", choices=ABLATIONS, default=ABLATIONS, help="(default: all)")
    _lengths(group)
    add("--num-streams", type=count, default=8, metavar="N", help="that decode at once " + DEFAULT)
    add(
        "--prefix-len",
        type=count,
        default=1024,
        metavar="N",
        help="tokens of a shared prefix, and of a long prompt " + DEFAULT,
    )


def compare(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"the interpreter of an environment that has {', '.join(PEER_NAMES)}; may be "
        "repeated (those installed beside Quire are found)",
    )
    add("--peers-only", action="store_true", help="compare with no others than those of --peer")
    add("--tasks", nargs="+", choices=TASKS, help="(default: all; startup with weights on disk)")
    _lengths(group)
    add("--num-prompts", type=count, default=16, metavar="N", help="of batch, at once " + DEFAULT)
    add(
        "--files",
        type=Path,
        default=Path(tempfile.gettempdir()) / "quire-peers",
        metavar="DIR",
        help="where a preset's weights as GGUF are kept, for peers that read nothing else "
        + DEFAULT,
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
        help="what all others are held to, such as what they were quantized from (default: of each "
        "model its first combination)",
    )
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="to predict, blank lines between documents (default: stories that come with Quire)",
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
