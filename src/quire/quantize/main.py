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

if TYPE_CHECKING:
    from quire.quantize.job import Job, Progress

_DEFAULT = "(default: %(default)s)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a folder, a hub id or a built-in name, unquantized")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="DIR|FILE.gguf",
        help="the folder or file to write. Unfinished work stays in OUTPUT.work; the same command "
        "continues it",
    )
    add(
        "--scheme",
        required=True,
        choices=SCHEMES,
        metavar="NAME",
        help=f"{', '.join(COMPRESSED)} (compressed-tensors, in safetensors); {', '.join(GGUF)} "
        "(GGUF). Products with int8, int4 and GGUF's quantized types round activations to 8 bits, "
        "which costs about 1 %% of each; int8_w8a16 and fp8 use bfloat16 activations",
    )
    add(
        "--method",
        choices=("rtn", "awq", "gptq"),
        default="rtn",
        help="rtn rounds to nearest. awq and gptq use calibration texts: awq scales the columns "
        "with large inputs (any scheme), gptq compensates each column's error in the next ones "
        + _DEFAULT,
    )
    _add_details(parser.add_argument_group("details"))
    _add_calibration(parser.add_argument_group("calibration, for awq and gptq"))
    _add_report(parser.add_argument_group("report"))


def _add_details(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--group-size",
        type=int,
        default=128,
        metavar="N",
        help="columns per scale of int4 " + _DEFAULT,
    )
    add("--asymmetric", action="store_true", help="int4 with one zero point per group")
    add(
        "--no-act-order",
        action="store_true",
        help="gptq keeps the order of columns; default: largest inputs first",
    )
    add(
        "--ignore",
        nargs="+",
        default=["lm_head"],
        metavar="NAME",
        help="layers to leave unquantized, by name or as re:PATTERN (default: lm_head)",
    )
    add(
        "--max-shard-bytes",
        type=parse_size,
        default=5 * 10**9,
        metavar="SIZE",
        help="largest size of a .safetensors file (default: 5GB)",
    )
    add(
        "--num-threads",
        type=int,
        metavar="N",
        help="threads to compute with (default: one per core)",
    )
    add("--revision", metavar="REVISION", help="revision of a hub id")
    add("--download-dir", metavar="DIR", help="folder for downloads of hub models")


def _add_calibration(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--calibration",
        default="self",
        metavar="FILE|self",
        help="texts: a file with lines of --- between documents, or .jsonl (.gz). With `self` the "
        "model writes them " + _DEFAULT,
    )
    add("--num-samples", type=int, default=128, metavar="N", help="number of texts " + _DEFAULT)
    add(
        "--seqlen",
        type=int,
        default=512,
        metavar="N",
        help="largest number of tokens of a text " + _DEFAULT,
    )


def _add_report(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="run both models on a text; print perplexity, KL divergence and top-1 agreement, and "
        "write them as JSON",
    )
    group.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="text of --report, not of the calibration (default: stories that come with Quire)",
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
    """Show a progress bar if standard error is a terminal; yield the function that updates it."""
    from tqdm import tqdm

    with tqdm(unit="layer", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def show(what: str, done: int, total: int) -> None:
            bar.total = total
            bar.n = done
            bar.set_description(what)

        yield show


def _same(one: Path, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _size(output: Path) -> int:
    files = [output] if output.is_file() else list(output.iterdir())
    return sum(file.stat().st_size for file in files)
