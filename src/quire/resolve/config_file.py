"""Configuration files: one flag per line, in YAML as with vLLM's `--config`, or in TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError
from quire.system.records import dataclass
from quire.text.files import read_text

if TYPE_CHECKING:
    import yaml

_TOML = ".toml"
_YAML = (".yaml", ".yml")
_NULL = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag in a file.

    Attributes:
        key: the flag's name without its leading dashes, with dashes or underscores.
        words: the value as on a command line; a list has several. None is YAML's null, which
            leaves the flag unset.
        where: the file and the line, for messages.
    """

    key: str
    words: list[str] | None
    where: str


def read_settings(path: Path) -> list[Setting]:
    """Return the flags that a file sets, in its order.

    Each value reaches its flag as text, so that a flag accepts the same in a file as on the command
    line, and YAML does not convert a git commit to a number.

    Raises:
        ConfigError: the file cannot be read, is neither TOML nor YAML, or sets a flag twice.
    """
    text = read_text(path, f"The config file {path}", param="--config")
    if path.suffix == _TOML:
        settings = _from_toml(path, text)
    elif path.suffix in _YAML:
        settings = _from_yaml(path, text)
    else:
        raise ConfigError(
            f"{path} has the suffix {path.suffix!r}; a config file ends in .toml, .yaml or .yml.",
            param="--config",
        )
    seen: dict[str, str] = {}
    for setting in settings:
        name = setting.key.replace("_", "-")
        if name in seen:
            raise ConfigError(f"{setting.where}: {setting.key} is set at {seen[name]} already.")
        seen[name] = setting.where
    return settings


def write_settings(path: Path, values: Mapping[str, Any], comments: Sequence[str] = ()) -> None:
    """Write flags for `read_settings`, as TOML or YAML by the suffix.

    Args:
        values: field of `EngineArgs` → value; None means unset and is left out.
        comments: lines to write above.

    Raises:
        ConfigError: the suffix is none of a config file.
    """
    if path.suffix not in (_TOML, *_YAML):
        raise ConfigError(f"{path} must end in .toml, .yaml or .yml to be a config file.")
    sign = " = " if path.suffix == _TOML else ": "
    lines = [f"# {line}".rstrip() for line in comments]
    lines += [
        f"{name.replace('_', '-')}{sign}{_literal(value, path.suffix == _TOML)}"
        for name, value in values.items()
        if value is not None
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _literal(value: Any, toml: bool) -> str:
    if value == float("inf"):
        return "inf" if toml else ".inf"
    return json.dumps(value, ensure_ascii=False)


def _from_toml(path: Path, text: str) -> list[Setting]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.", param="--config") from None
    lines = text.splitlines()

    def where(key: str) -> str:
        """Return the first line that looks like the key's; tomllib reports no lines."""
        pattern = re.compile(rf"""\s*\[?\s*["']?{re.escape(key)}["']?\s*[]=.]""")
        numbers = (i for i, line in enumerate(lines, 1) if pattern.match(line))
        number = next(numbers, None)
        return f"{path}:{number}" if number else str(path)

    return [Setting(key, _words(value), where(key)) for key, value in table.items()]


def _words(value: Any) -> list[str]:
    """Return a TOML value as words of a command line; a table becomes JSON."""
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    if isinstance(value, bool | dict):
        return [json.dumps(value, default=str)]
    return [str(value)]


def _from_yaml(path: Path, text: str) -> list[Setting]:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line} is not YAML: {error.problem}.", param="--config") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}.", param="--config") from None
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: a config file has lines of `flag: value`.", param="--config")
    return [
        Setting(str(key.value), _yaml_words(value), f"{path}:{key.start_mark.line + 1}")
        for key, value in node.value
    ]


def _yaml_words(node: yaml.Node) -> list[str] | None:
    """Return a YAML value as words of a command line: plain text unchanged, a mapping as JSON."""
    import yaml

    match node:
        case yaml.ScalarNode(value=str(text), style=style):
            # Only infinity is spelled differently in YAML and in flags.
            text = "inf" if text in (".inf", ".Inf", ".INF") else text
            return None if style is None and text in _NULL else [text]
        case yaml.SequenceNode(value=items):
            return [word for item in items for word in _yaml_words(item) or [""]]
        case _:
            loader = yaml.SafeLoader("")
            return [json.dumps(loader.construct_object(node, deep=True), default=str)]
