"""Run the searches of `quire tune kernels`, here or in other processes, and write the file."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import Queue
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
from quire.ops.tuning import Shape, Tuning, load_tuning, save_tuning, tuned_folder
from quire.system.hardware import core_cpus, detect
from quire.tune.kernels.search import Found, search
from quire.tune.kernels.subjects import Task, attention, products

_ROWS = [1, 8, 32, 128]
_TYPES = {"gemm": "quantization", "attention": "kv_cache_dtype", "recurrent": "kv_cache_dtype"}
"""Op → the flag that changes it, in addition to `--dtype`."""

Tasks = Callable[[str, ModelConfig, Variant], Iterator[Task]]
"""Yields what to tune of an op of a model."""
Outcome = tuple[str, Shape, Any]
"""A task's label, its shape and its entry, which is None without a real gain."""


def tune(args: argparse.Namespace) -> int:
    """Search all requested ops and models; return the exit status.

    Raises:
        ConfigError: this machine or the engine cannot run with these flags.
    """
    if args.device == "cuda" or (args.device == "auto" and _card()):
        return _tune_card(args)
    args.isa = args.isa or available_isas()[-1]
    args.num_threads = args.num_threads or detect().cores
    args.rows = args.rows or _ROWS
    _check(args)
    found = _in_parallel(args) if args.jobs > 1 else _found_here(args)
    _write(found, load_tuning(args.isa, args.num_threads), args.output)
    return 0


def _check(args: argparse.Namespace) -> None:
    check_isa(args.isa)
    cores, threads = detect().cores, args.num_threads
    if args.jobs > 1 and args.jobs * threads > cores:
        raise ConfigError(
            f"--jobs {args.jobs} of {threads} threads need {args.jobs * threads} cores, and this "
            f"machine has {cores}: they would slow each other.",
            fix=f"Use --jobs {max(1, cores // threads)}, or fewer --num-threads.",
            param="--jobs",
        )


def _found_here(args: argparse.Namespace) -> Iterator[Outcome]:
    """Search in this process."""
    isa, threads, rows = args.isa, args.num_threads, args.rows

    def tasks(op: str, model: ModelConfig, variant: Variant) -> Iterator[Task]:
        ops = load_rounded(isa, threads, variant.quantization)
        random = np.random.default_rng(args.seed)
        setting = Setting(model, ops, variant, rows, args.context, 16, max(rows), random=random)
        if op == "recurrent":  # their native kernels have no such sizes
            return iter(())
        return products(setting) if op == "gemm" else attention(setting, threads)

    def find(task: Task) -> Found | None:
        return search(task.subject, args.repetitions, args.seconds)

    return _found(args, isa, {"ops": "cpu"}, tasks, find)


def _in_parallel(args: argparse.Namespace) -> Iterator[Outcome]:
    """Search in `--jobs` processes, each on its own cores."""
    jobs = [
        argparse.Namespace(**{**vars(args), "op": [op], "model": [model], _TYPES[op]: [dtype]})
        for op, model in itertools.product(args.op, args.model)
        for dtype in getattr(args, _TYPES[op])
    ]
    context = multiprocessing.get_context("spawn")
    places: Queue[list[int]] = context.Queue()
    cpus = [siblings[0] for siblings in core_cpus()]
    for i in range(args.jobs):
        places.put(cpus[i * args.num_threads : (i + 1) * args.num_threads])
    with ProcessPoolExecutor(args.jobs, context, initializer=_settle, initargs=(places,)) as pool:
        yield from itertools.chain.from_iterable(pool.map(_job, jobs))


def _job(args: argparse.Namespace) -> list[Outcome]:
    return list(_found_here(args))


def _settle(places: Queue[list[int]]) -> None:
    """Keep this process to cores that no other search has."""
    os.sched_setaffinity(0, places.get())


def _card() -> bool:
    """Return whether `--device auto` is a GPU."""
    gpu = detect().gpu
    return gpu is not None and gpu.kind == "cuda"


def _tune_card(args: argparse.Namespace) -> int:
    """Search for the GPU; see `tune`."""
    given = {"--isa": args.isa, "--num-threads": args.num_threads, "--jobs": args.jobs > 1}
    for flag, value in given.items():
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
) -> Iterator[Outcome]:
    """Search each task once, and yield its outcome."""
    known = set[Any]()
    for op, model in itertools.product(args.op, args.model):
        for variant, config in variants(args, model, isa, (_TYPES[op],), engine):
            for task in tasks(op, config, variant):
                if (key := (task.shape, task.rows)) in known:
                    continue
                known.add(key)
                found = find(task)
                yield task.label, task.shape, None if found is None else task.entry(found)


def _line(label: str, entry: Any) -> str:
    if entry is None:
        return f"{label}: the kernel's own values"
    values = {f: v for f in entry.tuning.__struct_fields__ if (v := getattr(entry.tuning, f))}
    chosen = ", ".join(f"{field} {value}" for field, value in values.items())
    return f"{label}: {entry.gain:.1%} faster with {chosen}"


def _write(found: Iterator[Outcome], known: Tuning[Any, Any], output: Path | None) -> None:
    """Print each result when it is there; replace the entries of these shapes in the file."""
    count, shapes = 0, set[Shape]()
    entries: list[Any] = []
    for label, shape, entry in found:
        print(_line(label, entry), flush=True)
        count += 1
        shapes.add(shape)
        if entry is not None:
            entries.append(entry)
    tuning = known.with_results(
        shapes,
        [entry for entry in entries if entry.shape[0] == "gemm"],
        [entry for entry in entries if entry.shape[0] != "gemm"],
    )
    print(f"{len(entries)} of {count} gained.", end=" ")
    if tuning == known:
        print("Nothing to write.")
        return
    file = save_tuning(tuning, output)
    used = output is None or output == tuned_folder()
    print(f"Written to {file}" + (", which engines load from now on." if used else "."))
    sys.stdout.flush()
