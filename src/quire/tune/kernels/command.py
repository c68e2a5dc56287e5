"""Run the searches of `quire tune kernels`, and write the file."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.kernels.case import Variant
from quire.bench.kernels.cases import Setting
from quire.bench.kernels.command import check_isa, variants
from quire.bench.kernels.rounded import load_rounded
from quire.core.errors import ConfigError
from quire.core.extras import require
from quire.core.model_config import ModelConfig
from quire.ops.native.kernels import available_isas
from quire.ops.tuning import Tuning, load_tuning, save_tuning, tuned_folder
from quire.system.hardware import detect
from quire.tune.kernels.search import Found, search
from quire.tune.kernels.subjects import Task, attention, products

_ROWS = [1, 8, 32, 128]
_TYPES = {"gemm": "quantization", "attention": "kv_cache_dtype"}
"""Op → the flag that changes it, in addition to `--dtype`."""

Tasks = Callable[[str, ModelConfig, Variant], Iterator[Task]]
"""Yields what to tune of an op of a model."""


def tune(args: argparse.Namespace) -> int:
    """Search all requested ops and models; return the exit status.

    Raises:
        ConfigError: this machine or the engine cannot run with these flags.
    """
    if args.device == "cuda" or (args.device == "auto" and _card()):
        return _tune_card(args)
    isa, threads = args.isa or available_isas()[-1], args.num_threads or detect().cores
    check_isa(isa)
    rows = args.rows or _ROWS

    def tasks(op: str, model: ModelConfig, variant: Variant) -> Iterator[Task]:
        ops = load_rounded(isa, threads, variant.quantization)
        random = np.random.default_rng(args.seed)
        setting = Setting(model, ops, variant, rows, args.context, 16, max(rows), random=random)
        return products(setting) if op == "gemm" else attention(setting, threads)

    def find(task: Task) -> Found | None:
        return search(task.subject, args.repetitions, args.seconds)

    found = _found(args, isa, {"ops": "cpu"}, tasks, find)
    _write(found, load_tuning(isa, threads), args.output)
    return 0


def _card() -> bool:
    """Return whether `--device auto` is a GPU."""
    gpu = detect().gpu
    return gpu is not None and gpu.kind == "cuda"


def _tune_card(args: argparse.Namespace) -> int:
    """Search for the GPU; see `tune`."""
    for flag, value in {"--isa": args.isa, "--num-threads": args.num_threads}.items():
        if value:
            raise ConfigError(
                f"{flag} is for the kernels of CPUs, and --device is cuda.",
                fix=f"Leave {flag} out, or use --device cpu.",
                param=flag,
            )
    for module in ("torch", "triton"):
        require(module, "--device cuda", "--device")
    from quire.tune.kernels import card

    bench = card.open_bench()

    def tasks(op: str, model: ModelConfig, variant: Variant) -> Iterator[Task]:
        return card.tasks(op, bench, card.setting_of(bench, model, variant, args))

    def find(task: Task) -> Found | None:
        def report(why: str) -> None:
            print(f"{task.label}: {why}", flush=True)

        subject = card.sound(bench, task.subject, report)
        found = search(subject, args.repetitions, args.seconds)
        return card.confirmed(bench, subject, found, report)

    found = _found(args, "triton", {"ops": "triton", "device": "cuda"}, tasks, find)
    _write(found, bench.known(), args.output)
    return 0


def _found(
    args: argparse.Namespace,
    isa: str,
    engine: dict[str, str],
    tasks: Tasks,
    find: Callable[[Task], Found | None],
) -> list[tuple[Task, Any]]:
    """Search each task once, and print its result; return the tasks with their entries.

    An entry is None without a real gain.
    """
    known, outcomes = set[Any](), []
    for op, model in itertools.product(args.op, args.model):
        for variant, config in variants(args, model, isa, (_TYPES[op],), engine):
            for task in tasks(op, config, variant):
                if (key := (task.shape, task.rows)) in known:
                    continue
                known.add(key)
                found = find(task)
                entry = None if found is None else task.entry(found)
                print(_line(task.label, entry), flush=True)
                outcomes.append((task, entry))
    return outcomes


def _line(label: str, entry: Any) -> str:
    if entry is None:
        return f"{label}: the kernel's own values"
    values = {f: v for f in entry.tuning.__struct_fields__ if (v := getattr(entry.tuning, f))}
    chosen = ", ".join(f"{field} {value}" for field, value in values.items())
    return f"{label}: {entry.gain:.1%} faster with {chosen}"


def _write(outcomes: list[tuple[Task, Any]], known: Tuning[Any, Any], output: Path | None) -> None:
    """Replace the entries of these shapes in the tuning file."""
    entries = [entry for _, entry in outcomes if entry is not None]
    found = known.with_results(
        {task.shape for task, _ in outcomes},
        [entry for entry in entries if entry.shape[0] == "gemm"],
        [entry for entry in entries if entry.shape[0] == "attention"],
    )
    print(f"{len(entries)} of {len(outcomes)} gained.", end=" ")
    if found == known:
        print("Nothing to write.")
        return
    file = save_tuning(found, output)
    used = output is None or output == tuned_folder()
    print(f"Written to {file}" + (", which engines load from now on." if used else "."))
    sys.stdout.flush()
