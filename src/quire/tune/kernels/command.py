"""Run the searches of `quire tune kernels`, here or in other processes, and write the file."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from quire.system.records import dataclass
from quire.tune.kernels.search import search
from quire.tune.kernels.subjects import Task, attention, products

if TYPE_CHECKING:
    from quire.tune.kernels.card import Bench

_ROWS = [1, 8, 32, 128]
_TYPES = {"gemm": "quantization", "attention": "kv_cache_dtype"}
"""Op → the flag that changes it, in addition to `--dtype`."""


@dataclass(frozen=True)
class Job:
    """The searches that one process runs: one op of one model."""

    op: str
    model: ModelConfig
    variant: Variant
    threads: int
    args: argparse.Namespace


@dataclass(frozen=True)
class Outcome:
    """The result for one shape or row range; `entry` is None without a real gain."""

    label: str
    shape: Shape
    entry: Any


def tune(args: argparse.Namespace) -> int:
    """Search all requested ops and models; return the exit status.

    Raises:
        ConfigError: this machine or the engine cannot run with these flags.
    """
    if args.device == "cuda" or (args.device == "auto" and detect().gpu is not None):
        return _tune_card(args)
    args.rows = args.rows or _ROWS
    isa = args.isa or available_isas()[-1]
    threads = args.num_threads or detect().cores
    _check(args, isa, threads)
    jobs = [job for op in args.op for job in _jobs(args, op, isa, threads)]
    outcomes = _printed(_run_all(jobs, args.jobs, threads))
    _write(outcomes, load_tuning(isa, threads), args.output)
    return 0


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
    outcomes = _printed(_card_outcomes(args, bench))
    _write(outcomes, bench.known(), args.output)
    return 0


def _card_outcomes(args: argparse.Namespace, bench: Bench) -> Iterator[Outcome]:
    from quire.tune.kernels import card

    engine, known = {"ops": "triton", "device": "cuda"}, set[Any]()
    for op, model in itertools.product(args.op, args.model):
        for variant, config in variants(args, model, "triton", (_TYPES[op],), engine):
            setting = card.setting_of(bench, config, variant, args)
            for task in card.tasks(op, bench, setting):
                if (key := (task.shape, task.rows)) in known:
                    continue
                known.add(key)
                report = partial(_left_out, task.label)
                subject = card.sound(bench, task.subject, report)
                found = search(subject, args.repetitions, args.seconds)
                found = card.confirmed(bench, subject, found, report)
                yield Outcome(task.label, task.shape, None if found is None else task.entry(found))


def _left_out(label: str, why: str) -> None:
    print(f"{label}: {why}", flush=True)


def _printed(found: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes, each printed as soon as it is there."""
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
    return outcomes


def outcomes_of(job: Job) -> Iterator[Outcome]:
    """Yield the outcome of each task of a job."""
    for task in _tasks(job):
        found = search(task.subject, job.args.repetitions, job.args.seconds)
        yield Outcome(task.label, task.shape, None if found is None else task.entry(found))


def run_job(job: Job) -> list[Outcome]:
    return list(outcomes_of(job))


def _tasks(job: Job) -> Iterator[Task]:
    args, variant = job.args, job.variant
    setting = Setting(
        job.model,
        load_rounded(variant.isa, job.threads, variant.quantization),
        variant,
        rows=args.rows,
        contexts=args.context,
        block_size=16,
        max_num_seqs=max(args.rows),
        random=np.random.default_rng(args.seed),
    )
    return products(setting) if job.op == "gemm" else attention(setting, job.threads)


def _jobs(args: argparse.Namespace, op: str, isa: str, threads: int) -> Iterator[Job]:
    for model in args.model:
        for variant, config in variants(args, model, isa, (_TYPES[op],)):
            yield Job(op, config, variant, threads, args)


def _run_all(jobs: list[Job], count: int, threads: int) -> Iterator[Outcome]:
    """Yield the jobs' outcomes: in order from this process, or as `count` others finish."""
    if count == 1:
        yield from itertools.chain.from_iterable(map(outcomes_of, jobs))
        return
    context = multiprocessing.get_context("spawn")
    places: Queue[list[int]] = context.Queue()
    cpus = [siblings[0] for siblings in core_cpus()]
    for i in range(count):
        places.put(cpus[i * threads : (i + 1) * threads])
    with ProcessPoolExecutor(count, context, initializer=_settle, initargs=(places,)) as pool:
        pending: list[Future[list[Outcome]]] = [pool.submit(run_job, job) for job in jobs]
        for done in as_completed(pending):
            yield from done.result()


def _settle(places: Queue[list[int]]) -> None:
    """Keep this process to cores that no other search has."""
    os.sched_setaffinity(0, places.get())


def _check(args: argparse.Namespace, isa: str, threads: int) -> None:
    check_isa(isa)
    cores = detect().cores
    if args.jobs > 1 and args.jobs * threads > cores:
        raise ConfigError(
            f"--jobs {args.jobs} of {threads} threads need {args.jobs * threads} cores, and this "
            f"machine has {cores}: they would slow each other.",
            fix=f"Use --jobs {max(1, cores // threads)}, or fewer --num-threads.",
            param="--jobs",
        )


def _line(outcome: Outcome) -> str:
    entry = outcome.entry
    if entry is None:
        return f"{outcome.label}: the kernel's own values"
    values = {f: v for f in entry.tuning.__struct_fields__ if (v := getattr(entry.tuning, f))}
    chosen = ", ".join(f"{field} {value}" for field, value in values.items())
    return f"{outcome.label}: {entry.gain:.1%} faster with {chosen}"


def _write(outcomes: list[Outcome], known: Tuning[Any, Any], output: Path | None) -> None:
    """Replace the entries of these shapes in the tuning file."""
    entries = [outcome.entry for outcome in outcomes if outcome.entry is not None]
    found = known.with_results(
        {outcome.shape for outcome in outcomes},
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
