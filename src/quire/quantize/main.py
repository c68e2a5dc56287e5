"""`quire quantize`: write a smaller copy of a model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError
from quire.quantize.recipe import COMPRESSED, GGUF, SCHEMES, Recipe
from quire.resolve.field_flags import parse_size
from quire.resolve.flags import Flags

if TYPE_CHECKING:
    from quire.quantize.job import Job, Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    text = "a folder, a hub id or a built-in name, unquantized"
    parser.add_argument("model", metavar="MODEL", help=text)
    add = Flags(parser)
    add(
        "--output",
        None,
        "the folder or file to write. Unfinished work stays in OUTPUT.work; the same command "
        "continues it",
        type=Path,
        required=True,
        metavar="DIR|FILE.gguf",
    )
    add(
        "--scheme",
        None,
        f"{', '.join(COMPRESSED)} (compressed-tensors, in safetensors); {', '.join(GGUF)} (GGUF). "
        "Products with int8, int4 and GGUF's quantized types round activations to 8 bits, which "
        "costs about 1 %% of each; int8_w8a16 and fp8 use bfloat16 activations",
        required=True,
        choices=SCHEMES,
        metavar="NAME",
    )
    add(
        "--method",
        "rtn",
        "rtn rounds to nearest. awq and gptq use calibration texts: awq scales the columns with "
        "large inputs (any scheme), gptq compensates each column's error in the next ones",
        choices=("rtn", "awq", "gptq"),
    )
    _add_details(Flags(parser.add_argument_group("details")))
    _add_calibration(Flags(parser.add_argument_group("calibration, for awq and gptq")))
    _add_report(Flags(parser.add_argument_group("report")))


def _add_details(add: Flags) -> None:
    add("--group-size", 128, "columns per scale of int4", type=int)
    add("--asymmetric", False, "int4 with one zero point per group")
    add("--no-act-order", False, "gptq keeps the order of columns; default: largest inputs first")
    text = "layers to leave unquantized, by name or as re:PATTERN"
    add("--ignore", ["lm_head"], text, metavar="NAME")
    text = "largest size of a .safetensors file (default: 5GB)"
    add("--max-shard-bytes", 5 * 10**9, text, type=parse_size)
    add("--num-threads", None, "threads to compute with (default: one per core)", type=int)
    add("--revision", None, "revision of a hub id", metavar="REVISION")
    add("--download-dir", None, "folder for downloads of hub models", metavar="DIR")


def _add_calibration(add: Flags) -> None:
    add(
        "--calibration",
        "self",
        "texts: a file with lines of --- between documents, or .jsonl (.gz). With `self` the "
        "model writes them",
        metavar="FILE|self",
    )
    add("--num-samples", 128, "number of texts", type=int)
    add("--seqlen", 512, "largest number of tokens of a text", type=int)


def _add_report(add: Flags) -> None:
    add(
        "--report",
        None,
        "run both models on a text; print perplexity, KL divergence and top-1 agreement, and write "
        "them as JSON",
        type=Path,
    )
    add(
        "--text",
        None,
        "text of --report, not of the calibration (default: stories that come with Quire)",
        type=Path,
    )


def run(args: argparse.Namespace) -> int:
    """Quantize, and write the report if asked.

    Raises:
        QuireError: see `job.quantize`.
    """
    job = _job(args)
    if args.text is not None and args.report is None:
        raise ConfigError("--text is for --report.", param="--text")
    if args.text is not None and job.recipe.needs_calibration and _same(args.text, job.calibration):
        raise ConfigError(
            "--text is the calibration text; a report needs another text.",
            fix="Name another.",
            param="--text",
        )
    from quire.quantize.job import quantize

    try:
        with _progress() as progress:
            output = quantize(job, progress)
    except KeyboardInterrupt:
        print("\nStopped. The same command continues from here.", file=sys.stderr)
        raise
    print(f"{output}: {_size(output) / 1e6:.1f} MB")
    if args.report is not None:
        from quire.quantize.report import report

        report(job.model, output, args.text, args.report, num_threads=job.num_threads)
    return 0


def _job(args: argparse.Namespace) -> Job:
    from quire.quantize.job import Job
    from quire.system.hardware import detect

    for name in ("num_samples", "seqlen", "num_threads", "max_shard_bytes"):
        value, flag = getattr(args, name), "--" + name.replace("_", "-")
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be at least 1.", param=flag)
    recipe = Recipe(
        args.scheme,
        args.method,
        args.group_size,
        symmetric=not args.asymmetric,
        act_order=not args.no_act_order,
        ignore=tuple(args.ignore),
    )
    return Job(
        args.model,
        args.output,
        recipe,
        args.calibration,
        args.num_samples,
        args.seqlen,
        args.max_shard_bytes,
        args.num_threads or detect().cores,
        args.revision,
        args.download_dir,
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a bar on a terminal, in a log a line per layer; yield the function that does so."""
    from tqdm import tqdm

    is_log = not sys.stderr.isatty()
    with tqdm(unit="layer", file=sys.stderr, disable=is_log) as bar:

        def show(what: str, done: int, total: int) -> None:
            if is_log:
                print(f"{what}: {done} of {total} finished", file=sys.stderr, flush=True)
            bar.total = total
            bar.n = done
            bar.set_description(what)

        yield show


def _same(one: Path, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _size(output: Path) -> int:
    files = [output] if output.is_file() else list(output.iterdir())
    return sum(file.stat().st_size for file in files)
