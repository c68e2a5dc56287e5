"""The search space: fields of `EngineArgs`, and the values to try for each."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import field_value

Configuration = dict[str, Any]
"""Field of `EngineArgs` → value, for each field of a space."""
Space = dict[str, list[Any]]

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_itl_stretch")
"""Fields that affect each other; they are searched together."""
GRID: Space = {
    "max_num_seqs": [8, 16, 32, 64, 128, 256],
    "max_num_batched_tokens": [256, 512, 1024, 2048, 4096],
}
"""Space of `--method grid`: vLLM's auto_tune script, with smaller batches for smaller machines."""
_LIMITS: Space = {
    "max_num_seqs": [4, 8, 16, 32, 64, 128, 256],
    "max_num_batched_tokens": [None, 256, 512, 1024, 2048, 4096, 8192],
    "max_itl_stretch": [None, 1.2, 2.0, 3.0, math.inf],
}
_OTHERS: Space = {
    "num_scheduler_steps": [1, 4],
    "async_scheduling": [False, True],
    "block_size": [8, 16, 32],
}
_LOSSY: Space = {"quantization": [None, "int8", "int4"], "kv_cache_dtype": ["auto", "int8"]}
_SIZES = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
MEMORY = ("gpu_memory_utilization", *_SIZES)
"""Fields that limit the KV cache; the last value of each gives the largest one."""
UNMODELLED = {"block_size"}
"""Fields whose effect on speed the simulator does not model."""


def search_space(
    start: EngineArgs,
    cores: int,
    *,
    given: Mapping[str, list[Any]],
    held: Sequence[str],
    lossy: bool,
) -> Space:
    """Return the fields to vary; each field's first value is the start's.

    The caller adds the memory share when it is known.

    Args:
        given: values to try per field; they replace or extend the built-in ones.
        held: fields that keep the start's value.
        lossy: whether to try dtypes that change the answers.
    """
    threads = {1, max(1, cores // 2), cores} - {cores if start.num_threads is None else None}
    space: Space = {**_LIMITS, "num_threads": sorted(threads), **_OTHERS}
    if lossy:
        space |= _LOSSY
    space |= {name: [None] for name in _SIZES if getattr(start, name) is not None}
    space |= {"gpu_memory_utilization": [], **given}
    space |= {name: [] for name in held}
    return {
        name: list(dict.fromkeys([_value(start, name), *values])) for name, values in space.items()
    }


def configurations(space: Space) -> Iterator[Configuration]:
    """Yield every combination except those in which one field overrules another."""
    for values in itertools.product(*space.values()):
        chosen = dict(zip(space, values, strict=True))
        tokens, stretch = chosen.get("max_num_batched_tokens"), chosen.get("max_itl_stretch")
        if not (tokens is not None and stretch is not None and len(space["max_itl_stretch"]) > 1):
            yield chosen


def start_of(start: EngineArgs, space: Space) -> Configuration:
    """Return the start as a point of the space."""
    return {name: _value(start, name) for name in space}


def _value(start: EngineArgs, name: str) -> Any:
    return start.memory_share("cpu") if name == "gpu_memory_utilization" else getattr(start, name)


def apply(start: EngineArgs, configuration: Configuration) -> EngineArgs:
    """Return the start with the fields of a configuration."""
    return replace(start, **configuration)


def key(configuration: Configuration) -> str:
    """Return a text that identifies the configuration."""
    return json.dumps(configuration, sort_keys=True)


def differences(one: Configuration, other: Configuration) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values."""
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def show(configuration: Configuration, base: Configuration) -> str:
    """Return the differences from a base as flags; "the start" if there are none."""
    changed = differences(base, configuration)
    words = [f"{name.replace('_', '-')}={show_value(new)}" for name, (_, new) in changed.items()]
    return " ".join(words) or "the start"


def show_value(value: Any) -> str:
    """Return a value as the user writes it: `auto` if unset."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def file_values(args: EngineArgs) -> dict[str, Any]:
    """Return the fields of a config file: those that differ from the defaults."""
    defaults = asdict(EngineArgs())
    values = asdict(args)
    return {
        field.name: values[field.name]
        for field in fields(EngineArgs)
        if values[field.name] != defaults[field.name]
    }


def parse_space(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return fields and values from `max-num-seqs=8,16,none` and similar.

    Raises:
        ConfigError: a field is unknown or comes twice, or a value is wrong.
    """
    space: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, words = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not sign or not words or name in space:
            raise ConfigError(
                f"--space has {text!r}.",
                fix="Write for example --space max-num-seqs=8,16,32, each field once.",
                param="--space",
            )
        try:
            values = [field_value(name, word.strip()) for word in words.split(",")]
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--space {text}: {error}.", param="--space") from None
        space[name] = list(dict.fromkeys(values))
    return space
