"""Makes a `ProfilerConfig` from flags, JSON or environment variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from quire.core.config import ProfilerConfig
from quire.core.extras import require
from quire.core.registry import did_you_mean
from quire.resolve.flag_values import expanded, read_object, wrong_flag

_FLAG = "--profiler-config"
_error = partial(wrong_flag, "profiler_config")


def parse_profiler_config(given: ProfilerConfig | Mapping[str, Any] | str) -> ProfilerConfig:
    """Return a `ProfilerConfig` from itself, its fields, or JSON; values may be text.

    Raises:
        ConfigError: a field is unknown, or a value has the wrong type.
    """
    if isinstance(given, str):
        example = '{"profiler": "torch", "torch_profiler_dir": "traces"}'
        given = read_object("profiler_config", given, example)
    if not isinstance(given, ProfilerConfig | Mapping):
        raise _error(f"it is {given!r}, not an object.")
    fields = dataclasses.asdict(given) if isinstance(given, ProfilerConfig) else dict(given)
    known = [field.name for field in dataclasses.fields(ProfilerConfig)]
    for name in fields:
        if name not in known:
            raise _error(f"it has a field {name!r}; {did_you_mean(str(name), known)}")
    try:
        return msgspec.convert(fields, ProfilerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise _error(f"{error}.") from None


def checked(config: ProfilerConfig) -> ProfilerConfig:
    """Return the configuration with an absolute folder.

    Raises:
        ConfigError: fields contradict each other or are negative, or torch is not installed.
    """
    for name in ("delay_iterations", "max_iterations"):
        if getattr(config, name) < 0:
            raise _error(f"{name} must not be negative.")
    if config.profiler is not None:
        require("torch", f"{_FLAG}.profiler={config.profiler}", _FLAG)
    if config.profiler == "torch" and not config.torch_profiler_dir:
        fix = f"Add {_FLAG}.torch_profiler_dir=DIR."
        raise _error("torch's profiler needs a folder for its traces.", fix)
    if config.profiler != "torch" and config.torch_profiler_dir:
        raise _error("torch_profiler_dir is for torch's profiler.", f"Add {_FLAG}.profiler=torch.")
    folder = config.torch_profiler_dir
    absolute = str(expanded(folder, f"{_FLAG}.torch_profiler_dir").absolute()) if folder else ""
    return dataclasses.replace(config, torch_profiler_dir=absolute)


def from_environment(fields: Mapping[str, str]) -> ProfilerConfig:
    """Return the profiler from vLLM's variables; no profiler if they name no folder."""
    if "torch_profiler_dir" not in fields:
        return ProfilerConfig()
    return parse_profiler_config({"profiler": "torch", **fields})
