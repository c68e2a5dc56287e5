"""Read the values of flags: JSON, and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.core.errors import ConfigError

T = TypeVar("T")

_ACCELERATOR = "Quire computes on CPUs and on GPUs of NVIDIA, AMD and Apple. Use cpu."
REFUSED: dict[str, dict[str, str]] = {
    "device": {
        **dict.fromkeys(("rocm", "hip", "amd"), "write cuda, torch's name of AMD's GPUs as well."),
        **dict.fromkeys(("xpu", "intel"), "Quire does not run on Intel's GPUs. Use cpu."),
        "metal": "write mps, torch's name of Apple's GPUs.",
        **dict.fromkeys(("tpu", "hpu", "neuron", "npu"), _ACCELERATOR),
        "gpu": "write cuda, or auto to take the CPU if there is no GPU.",
    },
}
"""Field → a value that Quire refuses by name → the reason."""


def refusal(name: str, value: str) -> str | None:
    """Return why Quire refuses a value of a field by name; None if it does not."""
    if name == "device" and value.startswith("cuda:"):
        return "write cuda, and choose the GPU by CUDA_VISIBLE_DEVICES."
    return REFUSED.get(name, {}).get(value.lower())


def read_json(name: str, text: str, kind: type[T], example: str) -> T:
    """Return the value of the flag of an `EngineArgs` field as a `kind`.

    Raises:
        ConfigError: the text is no JSON, or none of a `kind`.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise wrong_flag(
            name, f"{text!r} is wrong: {error}.", f"Write {flag_of(name)} '{example}'."
        ) from None


def read_object(name: str, text: str | None, example: str = '{"name": 1}') -> dict[str, Any]:
    """Return the fields of a JSON object; none if the flag is not set. Raises as `read_json`."""
    return {} if text is None else read_json(name, text, dict[str, Any], example)


def wrong_flag(name: str, why: str, fix: str | None = None) -> ConfigError:
    return ConfigError(f"{flag_of(name)}: {why}", fix=fix, param=name)


def value_error(args: object, name: str, why: str, fix: str | None = None) -> ConfigError:
    """Return the error of a field of `EngineArgs`: its value, and the reason."""
    return ConfigError(f"{name} is {getattr(args, name)!r}; {why}", fix=fix, param=name)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def expanded(name: str, param: str) -> Path:
    """Return a path with `~` and `~user` expanded.

    Raises:
        ConfigError: there is no such user; names `param`.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{param} is {name!r}: {str(error).rstrip('.')}.",
            fix="Write the path out.",
            param=param,
        ) from None
