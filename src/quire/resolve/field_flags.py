"""Command-line flags generated from a dataclass of arguments, so that both always match."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quire.core.config import ProfilerConfig
from quire.resolve.flag_values import refusal
from quire.resolve.profiler import parse_profiler_config
from quire.resolve.vllm_arguments import OTHER_VALUES, modernize
from quire.resolve.vllm_flags import FOREIGN, add_foreign_flags, foreign_notes, foreign_values

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arguments = TypeVar("Arguments", bound="DataclassInstance")
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PROFILER = "profiler_config."
_SHORT = {
    "tensor_parallel_size": ["-tp"],
    "pipeline_parallel_size": ["-pp"],
    "data_parallel_size": ["-dp"],
    "quantization": ["-q"],
    "compilation_config": ["-O", "-cc"],
    "data_parallel_backend": ["-dpb"],
    "data_parallel_rank": ["-dpn"],
    "data_parallel_address": ["-dpa"],
    "data_parallel_rpc_port": ["-dpp"],
    "data_parallel_size_local": ["-dpl"],
    "data_parallel_start_rank": ["-dpr"],
}
"""vLLM's short spellings."""
_UNITS = (
    {"": 1, "B": 1, "kB": 1000}
    | _BINARY
    | _DECIMAL
    | {f"{letter}iB": factor for letter, factor in _BINARY.items()}
    | {f"{letter.upper()}B": factor for letter, factor in _DECIMAL.items()}
)


class _FieldHelp(str):
    """A flag's help: its field's docstring and a note. The source is read when help is printed.

    As a string it is the field's name.
    """

    kind: type[Any]
    note: str

    def __new__(cls, name: str, kind: type[Any], note: str) -> Self:
        made = super().__new__(cls, name)
        made.kind, made.note = kind, note
        return made

    def __mod__(self, values: Any) -> str:
        """Return the text, as argparse formats it."""
        docs = field_docs(self.kind)  # type: ignore[arg-type]  # for mypy, type[Any] has no hash
        note: str = self.note % values
        return docs.get(self, "") + note


def add_flags(
    kind: type[Any], parser: argparse.ArgumentParser, defaults: Mapping[str, Any] | None = None
) -> None:
    """Add one flag for each field of a dataclass to `parser`, in a group "engine".

    A field `max_model_len` becomes `--max-model-len`; `--max_model_len` is accepted too. A
    boolean field also gets `--no-…`, a `Literal` becomes choices, and a field whose name ends in
    `_bytes` takes sizes such as `4GiB` (see `parse_size`).

    Args:
        defaults: defaults that differ from the dataclass's own.
    """
    group = parser.add_argument_group("engine")
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = (defaults or {}).get(field.name, field.default)
        flag = "--" + field.name.replace("_", "-")
        aliases = ["--" + field.name] if "_" in field.name else []
        aliases += _SHORT.get(field.name, [])
        if hints[field.name] in (bool, bool | None):
            _add_switch(group, kind, field.name, flag, aliases, default=default)
            continue
        if field.name == "profiler_config":
            _add_dotted(group)
        options = value_options(field.name, hints[field.name])
        text = _FieldHelp(field.name, kind, "" if default is None else " (default: %(default)s)")
        group.add_argument(flag, dest=field.name, default=default, help=text, **options)
        for alias in aliases:
            group.add_argument(
                alias, dest=field.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options
            )
    add_foreign_flags(parser)


def arguments_from(kind: type[Arguments], namespace: argparse.Namespace) -> Arguments:
    """Return the arguments of the parsed flags; ignore other names in `namespace`.

    vLLM's flags are read, too. Those without effect are reported on stderr.

    Raises:
        ConfigError: the profiler's flags are wrong, or one of vLLM's is not supported.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in vars(namespace).items() if name in names}
    values |= foreign_values(vars(namespace))
    notes = modernize(values)
    foreign = {name: values.pop(name) for name in [*values] if name in FOREIGN}
    for note in [*notes, *foreign_notes(foreign)]:
        print(f"note: {note}", file=sys.stderr)
    whole = values.get("profiler_config")
    parts = {
        name.removeprefix(_PROFILER): value
        for name, value in vars(namespace).items()
        if name.startswith(_PROFILER)
    }
    if whole is not None or parts:
        config = parse_profiler_config(whole or {})
        values["profiler_config"] = parse_profiler_config(dataclasses.asdict(config) | parts)
    return kind(**values)


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a class, on one line; {} without source code."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except OSError:
        return {}
    return _docs_in(typing.cast(ast.ClassDef, tree.body[0]))


def module_docs(module: types.ModuleType) -> dict[str, dict[str, str]]:
    """Return `field_docs` of all classes of a module, by class name."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except OSError:
        return {}
    return {node.name: _docs_in(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_in(definition: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for node, following in itertools.pairwise(definition.body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[node.target.id] = " ".join(following.value.value.split())
    return docs


def parse_size(text: str) -> int:
    """Return bytes from "4096", "4GiB", "4G" (both 4·2³⁰), "4GB" or "4g" (both 4·10⁹).

    Raises:
        argparse.ArgumentTypeError: for other texts, and for fractions of a byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    factor = _UNITS.get(match[2]) if match else None
    if match is None or factor is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write bytes, or for example 512MiB, 4GiB or 4GB"
        )
    size = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if size != int(size):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of bytes")
    return int(size)


def _parse_tokens(text: str) -> int:
    """Return a number of tokens from "4096", "4K" (4 · 2¹⁰), "4k" (4 · 10³), "1M" or "1m"."""
    if text[-1:] in _BINARY.keys() | _DECIMAL.keys():
        return parse_size(text)
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of tokens; write for example 32768, 32K or 32k"
        ) from None


def _parse_length(text: str) -> int:
    return -1 if text == "auto" else _parse_tokens(text)


def _add_switch(
    group: argparse._ArgumentGroup,
    kind: type[Any],
    name: str,
    flag: str,
    aliases: list[str],
    *,
    default: bool | None,
) -> None:
    """Add a boolean: `--flag` with help; `--no-flag` and underscored spellings without help."""
    off = "--no-" + flag.removeprefix("--")
    if default is None:
        note = f" ({flag} or {off})"
    else:
        note = f" (default: {'on' if default else 'off'}; {off if default else flag} to change)"
    text = _FieldHelp(name, kind, note)
    group.add_argument(flag, dest=name, action="store_true", default=default, help=text)
    hidden: dict[str, Any] = {"dest": name, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    if aliases:
        group.add_argument(*aliases, action="store_true", **hidden)
    offs = [off] + [f"--no_{alias.removeprefix('--')}" for alias in aliases]
    group.add_argument(*offs, action="store_false", **hidden)


def _add_dotted(group: argparse._ArgumentGroup) -> None:
    """Add a flag `--profiler-config.FIELD` for each field of a `ProfilerConfig`."""
    for field in dataclasses.fields(ProfilerConfig):
        flag = f"--profiler-config.{field.name}"
        group.add_argument(
            flag, flag.replace("_", "-"), dest=_PROFILER + field.name,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip


def _accepted(name: str, value: str) -> str:
    """Return a value of a field with choices, unless Quire refuses it by name."""
    if why := refusal(name, value):
        raise argparse.ArgumentTypeError(f"{value!r}: {why}")
    return value


def value_options(name: str, hint: Any) -> dict[str, Any]:
    """Return argparse's `type`, `choices` and `metavar` for a field's annotation."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    if typing.get_origin(hint) is typing.Literal:
        own: list[str] = [*typing.get_args(hint)]
        others, _ = OTHER_VALUES.get(name, ((), ""))
        shown = {"metavar": f"{{{','.join(own)}}}"} if others else {}
        return {"choices": [*own, *others], "type": functools.partial(_accepted, name), **shown}
    convert: Callable[[str], Any]
    if hint is int:
        size = name.endswith("_bytes")
        convert, metavar = (parse_size, "SIZE") if size else (int, "N")
        if name == "max_model_len":
            convert = _parse_length
        elif name == "max_num_batched_tokens":
            convert = _parse_tokens
    elif hint is float:
        convert, metavar = float, "X"
    elif hint is str:
        convert, metavar = str, name.rpartition("_")[2].upper()
    elif hint is ProfilerConfig:
        convert, metavar = str, "JSON"
    else:
        raise TypeError(f"{name}: no flag can be made for {hint!r}")
    return {"type": convert, "metavar": metavar}
