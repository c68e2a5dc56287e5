"""The flags of all benchmarks except `serve` (see `serve_flags`)."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from quire.bench import choices
from quire.resolve.flags import Flags, count

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


def latency(add: Flags) -> None:
    _lengths(add)
    add("--batch-size", 1, "prompts in the batch")
    add(
        "--lora-rank",
        0,
        "run each batch again with an adapter of this rank on every layer, and report the cost "
        "(default: none)",
    )


def throughput(add: Flags) -> None:
    _lengths(add)
    add("--num-prompts", 64, "prompts, all sent at once")
    for flag, ours in (("--dataset-name", "random"), ("--backend", "vllm")):  # vLLM's
        add(flag, None, argparse.SUPPRESS, choices=[ours])


def startup(add: Flags) -> None:
    add("--input-len", 16, "prompt tokens")


def start_timeout(add: Flags) -> None:
    text = "time limit for the started server to become ready"
    add("--start-timeout", 600.0, text, metavar="SECONDS")


def overhead(add: Flags) -> None:
    add("--streams", [1, 8, 32, 128], "numbers of concurrent streams; one measurement each")
    add("--input-len", 16, "prompt tokens")
    add("--output-len", 128, "tokens per stream")
    start_timeout(add)


def interference(add: Flags) -> None:
    add("--num-streams", 8, "requests that decode during the whole round")
    add("--input-len", 128, "prompt tokens per stream")
    add(
        "--idle-tokens",
        64,
        "tokens per stream before the first arrival and after the last, as the baseline",
    )
    add("--num-arrivals", 2, "prompts that arrive, each after the first token of the one before")
    add("--arrival-len", 4096, "tokens of an arriving prompt")
    add(
        "--budgets",
        None,
        "values of --max-num-batched-tokens to compare, one row each; `auto` is the engine's "
        "choice (default: the value of --max-num-batched-tokens)",
        nargs="+",
        type=_budget,
        metavar="N",
    )


def kernels(add: Flags) -> None:
    add("--model", ["qwen3-0.6b"], "presets or models whose shapes to use")
    add("--op", None, "families of ops (default: all)", nargs="+", choices=KERNEL_FAMILIES)
    add("--rows", [1, 4, 16, 64, 512], "tokens per step; for decode attention, sequences")
    add("--context", [256, 2048], "tokens of context for decode attention")
    text = "instruction sets (default: the most capable)"
    add("--isa", None, text, nargs="+", metavar="NAME")
    choices.add_flags(add, dtype=["bfloat16"])
    add("--num-threads", None, "compute threads (default: one per core)", type=count)
    add("--block-size", 16, "tokens per KV block")
    add("--max-num-seqs", 64, "maximum rows of logits and decoding sequences")
    add("--torch", False, "also time torch's own ops (needs torch)")
    add("--seconds", 0.03, "time per repetition; at least one call runs", metavar="S")
    add("--seed", 0, "seed of the random weights and inputs", type=int)


def ablate(add: Flags) -> None:
    add("--switch", ABLATIONS, "optimizations to measure (default: all)", choices=ABLATIONS)
    _lengths(add)
    add("--num-streams", 8, "decoding streams")
    add("--prefix-len", 1024, "tokens of a shared prefix and of a long prompt")


def compare(add: Flags) -> None:
    add(
        "--peer",
        [],
        f"a peer ({', '.join(PEER_NAMES)}) and the Python interpreter of its environment; may "
        "be repeated. Peers in Quire's own environment are found automatically",
        action="append",
        metavar="NAME=PYTHON",
    )
    add("--peers-only", False, "compare only with the peers of --peer")
    text = "what to measure (default: all; startup with weights on disk)"
    add("--tasks", None, text, nargs="+", choices=TASKS)
    _lengths(add)
    add("--num-prompts", 16, "concurrent prompts of the task batch")
    folder = Path(tempfile.gettempdir()) / "quire-peers"
    text = "folder for a preset's weights as GGUF, for peers that read only GGUF"
    add("--files", folder, text, metavar="DIR")


def quality(add: Flags) -> None:
    add("--model", ["embedded", "embedded-draft"], "built-in names, folders, files or hub ids")
    add(
        "--original",
        None,
        "reference for all other models, such as the one they were quantized from (default: the "
        "first combination of each model)",
        metavar="MODEL",
    )
    add(
        "--text",
        None,
        "text to predict, with lines of --- between documents (default: stories that come with "
        "Quire)",
        type=Path,
    )
    choices.add_flags(add)
    add("--num-threads", None, "compute threads (default: the engine's choice)", type=count)


def _lengths(add: Flags) -> None:
    add("--input-len", 128, "prompt tokens", "--random-input-len")
    add("--output-len", 64, "tokens to generate", "--random-output-len")


def _budget(text: str) -> str:
    return text if text == "auto" else str(count(text))
