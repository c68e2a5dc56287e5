"""`quire config`: the effective settings of `quire serve`, and the source of each value."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, TextIO

from quire.cli import serve
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved, resolve
from quire.resolve.vllm_flags import FOREIGN, PREFIX, foreign_values
from quire.system import env
from quire.system.hardware import detect
from quire.system.records import dataclass

_HIDDEN = {"api_key", "hf_token"}
_NO_SETTINGS = {
    *("model_tag", "config", "given", "file_values", "json"),
    *(field.name for field in fields(EngineArgs)),
}
_FROM_MODEL = {"quantization", "dtype", "max_model_len"}


@dataclass(frozen=True, slots=True)
class Value:
    """One flag.

    Attributes:
        source: "flag", "FILE:LINE", "environment", "model" (from the checkpoint), "auto"
            (chosen for this machine) or "default".
        why: the reason of a value that the user did not set; may be empty.
    """

    name: str
    value: Any
    source: str
    why: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list of the values")
    serve.add_arguments(parser)


def run(namespace: argparse.Namespace) -> int:
    """Print the configuration. This needs the model's configuration, not its weights.

    Raises:
        QuireError: the server could not start with these flags.
    """
    found = values(namespace)
    if namespace.json:
        json.dump([asdict(value) for value in found], sys.stdout, indent=2, default=str)
        print()
    else:
        print_values(found, sys.stdout)
    return 0


def values(namespace: argparse.Namespace) -> list[Value]:
    """Return all settings of `quire serve`; raises as `run`."""
    args = EngineArgs.from_cli_args(namespace)
    resolved = resolve(args, detect())
    return [*engine_values(namespace, args, resolved), *server_values(namespace)]


def engine_values(
    namespace: argparse.Namespace, args: EngineArgs, resolved: Resolved
) -> Iterator[Value]:
    """Return the engine's flags, with the chosen values of open ones."""
    chosen = _chosen(resolved) | {
        "gpu_memory_utilization": args.memory_share(resolved.config.device)
    }
    reasons = dict(note.split(": ", 1) for note in resolved.notes if ": " in note)
    budget = next((note for note in resolved.notes if note.startswith("memory budget")), "")
    for field in fields(EngineArgs):
        name, written = field.name, getattr(args, field.name)
        source = _source(namespace, name)
        value, why = written, ""
        if written in (None, "auto") and name in chosen:
            value = chosen[name]
            source = "model" if name in _FROM_MODEL else "auto"
            why = reasons.get(f"{name} {value}", "")
        if name == "gpu_memory_utilization":
            why = budget
        yield Value(name, value, source, why.rstrip("."))


def server_values(namespace: argparse.Namespace) -> Iterator[Value]:
    """Return the other flags, and the environment."""
    for name, value in foreign_values(vars(namespace)).items():
        shown = "(hidden)" if name in _HIDDEN else value
        yield Value(name, shown, _source(namespace, PREFIX + name), FOREIGN[name].why)
    for name, value in sorted(vars(namespace).items()):
        if name in _NO_SETTINGS or name.startswith(PREFIX):
            continue
        source = _source(namespace, name)
        if name == "api_key" and value is None and env.api_key():
            value, source = "…", "environment"
        yield Value(name, "(hidden)" if value and name in _HIDDEN else value, source)
    for name, value in env.given().items():
        yield Value(name, "(hidden)" if name.endswith("_KEY") else value, "environment")


def print_values(values: list[Value], out: TextIO) -> None:
    """Print one line per flag: config file spelling, value, source and reason."""
    rows = [
        (
            value.name if value.name.isupper() else value.name.replace("_", "-"),
            _shown(value.value),
            value.source,
            value.why,
        )
        for value in values
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print("  ".join([*cells, row[3]]).rstrip(), file=out)


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _source(namespace: argparse.Namespace, name: str) -> str:
    if name in namespace.given or (name == "model" and "model_tag" in namespace.given):
        return "flag"
    found = namespace.file_values.get(name)
    return "default" if found is None else found.where


def _chosen(resolved: Resolved) -> dict[str, Any]:
    """Return the engine's value of a flag that is unset or `auto`."""
    config = resolved.config
    quantized = {"quantization": config.quantization} if config.quantization_config else {}
    return quantized | {
        "dtype": config.dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_model_len": config.scheduler.max_model_len,
        "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
        "max_itl_stretch": config.scheduler.max_itl_stretch,
        "num_threads": config.num_threads,
        "prefix_caching_hash_algo": config.prefix_caching_hash_algo,
    }
