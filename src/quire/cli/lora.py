"""The flags of `quire serve` for adapters."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags


def add_lora_flags(add: Flags) -> None:
    text = 'adapters to serve, each as a model; also as JSON: {"name": …, "path": …}'
    add("--lora-modules", [], text, nargs="+", metavar="NAME=DIR")
    text = "folder from which clients may load adapters (/v1/load_lora_adapter; default: none)"
    add("--lora-dir", None, text, metavar="DIR")


def lora_modules(namespace: argparse.Namespace, args: EngineArgs) -> tuple[tuple[str, str], ...]:
    """Return names and folders of the adapters to serve.

    Raises:
        ConfigError: a value is malformed, or a name is repeated.
    """
    taken = {args.model, *(namespace.served_model_name or ())}
    modules = []
    for text in namespace.lora_modules:
        _needs_lora(args, "--lora-modules")
        try:
            given = msgspec.json.decode(text) if text.startswith("{") else {}
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--lora-modules {text}: {error}.", param="--lora-modules") from None
        name, _, path = text.partition("=")
        if text.startswith("{"):
            name, path = given.get("name"), given.get("path")
        if not (isinstance(name, str) and name and isinstance(path, str) and path):
            raise ConfigError(
                f"--lora-modules {text} is not of the form NAME=DIR.", param="--lora-modules"
            )
        if name in taken:
            raise ConfigError(f"--lora-modules: {name} is taken.", param="--lora-modules")
        taken.add(name)
        modules.append((name, path))
    return tuple(modules)


def lora_dir(namespace: argparse.Namespace, args: EngineArgs) -> Path | None:
    """Return the folder; raises `ConfigError` if it does not exist."""
    if namespace.lora_dir is None:
        return None
    _needs_lora(args, "--lora-dir")
    folder = Path(namespace.lora_dir)
    if not folder.is_dir():
        raise ConfigError(f"--lora-dir {folder} is not a folder.", param="--lora-dir")
    return folder


def _needs_lora(args: EngineArgs, flag: str) -> None:
    if not args.enable_lora:
        raise ConfigError(f"{flag} needs --enable-lora.", param=flag)
