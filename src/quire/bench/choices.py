"""The dtypes and quantizations that the engine accepts, as flags of benchmarks."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.errors import ConfigError
from quire.core.model_config import ModelConfig
from quire.core.quantization import QUANTIZATIONS
from quire.quant.names import NAMES, RANDOM_ONLY
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.resolve.flags import Flags
from quire.system.hardware import detect

_HINTS = typing.get_type_hints(EngineArgs)
CHOICES: dict[str, list[str]] = {
    "dtype": [name for name in typing.get_args(_HINTS["dtype"]) if name != "auto"],
    "quantization": ["none", *(name for name in NAMES if name not in RANDOM_ONLY)],
    "kv_cache_dtype": list(typing.get_args(_HINTS["kv_cache_dtype"])),
}
"""Field of `EngineArgs` → its values; "none" stands for None."""
DEFAULTS = CHOICES | {
    "quantization": ["none", *QUANTIZATIONS],
    "kv_cache_dtype": ["auto", "fp8", "fp8_e5m2", "int8", "int4"],
}
"""Values that are measured by default, without synonyms and near-duplicates."""


def add_flags(add: Flags, **defaults: list[str]) -> None:
    """Add `--dtype`, `--quantization` and `--kv-cache-dtype`, each with any number of values."""
    for name, values in CHOICES.items():
        default = defaults.get(name, DEFAULTS[name])
        add("--" + name.replace("_", "-"), default, "values to measure", choices=values)


def combinations(
    base: Mapping[str, Any], fields: Mapping[str, Sequence[str]]
) -> Iterator[tuple[EngineArgs, ModelConfig]]:
    """Yield every combination of the values of `fields` that the engine accepts.

    Args:
        base: other fields of `EngineArgs`.
        fields: names in `CHOICES` → values.

    Yields:
        the arguments and the resulting model configuration.

    Raises:
        ConfigError: no combination works; the reason of the first one.
    """
    refused: ConfigError | None = None
    found = False
    for values in itertools.product(*fields.values()):
        chosen = {k: None if v == "none" else v for k, v in zip(fields, values, strict=True)}
        args = EngineArgs(**{**base, **chosen})
        try:
            model = resolve(args, detect()).config.model
        except ConfigError as error:
            refused = refused or error
            continue
        found = True
        yield args, model
    if refused is not None and not found:
        raise refused
