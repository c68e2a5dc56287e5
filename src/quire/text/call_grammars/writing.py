"""Common parts of all formats: the builder of a grammar, and parts of schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import msgspec

from quire.system.records import dataclass
from quire.text.composition import Specials, pieces, slashes
from quire.text.string_formats import FORMATS

ANY = "/(?s:.*)/"
"""Any text."""
NOTES = {"title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id",
         "$comment", "deprecated"}  # fmt: skip
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties"}
_OF_TEXTS = {"type", "pattern", "minLength", "maxLength", "format", "enum", "const"}


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """A function; without a schema, its arguments are any object."""

    name: str
    schema: dict[str, Any] | None = None


@dataclass(slots=True)
class Writing:
    """Builds a grammar: lines of Lark, and the schemas that it refers to by `@name`.

    Attributes:
        otherwise: the schema of a text without calls; None is free text.
    """

    specials: Specials
    otherwise: dict[str, Any] | bool | None = None
    lines: list[str] = field(default_factory=list)
    schemas: dict[str, Any] = field(default_factory=dict)

    def rule(self, name: str, *alternatives: str) -> str:
        """Add a rule, or a terminal if the name is in capitals."""
        self.lines.append(f"{name}: {' | '.join(alternatives)}")
        return name

    def json(self, name: str, schema: Any) -> str:
        """Return a reference to a value in JSON."""
        self.schemas[name] = schema
        return f"@{name}"

    def start(self, *calls: str) -> None:
        """Return the grammar of the whole text: any number of `calls`, or else JSON."""
        self.rule("GAP", "/[ \\t\\r\\n]{1,8}/")
        several = f"(GAP? ({' | '.join(calls)}))+ GAP?"
        self.rule("start", several, self.json("otherwise", self.otherwise))

    def text(self, text: str) -> str:
        """Return a literal text with its control tokens."""
        return " ".join(pieces(text, self.specials))

    def ended(self, name: str, text: str, end: str) -> str:
        """Return a terminal of free text up to `end`. It includes `end`, unless that is a control
        token, because a lexer does not stop before it."""
        first, *rest = pieces(end, self.specials)
        if not first.startswith("<["):
            text, first = self.rule(name, f"{text} {first}"), ""
        return " ".join(filter(None, [text, first, *rest]))

    @property
    def lark(self) -> str:
        return "\n".join(self.lines)


def parameters(function: Function) -> Iterator[tuple[str, Any, bool]]:
    """Return a function's parameters in order: name, schema, and whether it is required."""
    schema = function.schema or {}
    if unknown := sorted(schema.keys() - _OF_OBJECTS - NOTES):
        raise ValueError(
            f"{function.name}: its parameters have {unknown[0]}, which arguments in this format "
            "are not held to"
        )
    properties = typed(schema, "properties", dict, {})
    required = typed(schema, "required", list, [])
    if not all(isinstance(name, str) for name in required):
        raise ValueError(f"{function.name}: required is no list of names")
    if missing := sorted(set(required) - set(properties)):
        raise ValueError(f"{function.name}: {missing[0]!r} is required, and no property")
    for key, value in properties.items():
        yield key, value, key in required


def typed(schema: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a keyword's value; raise `ValueError` if it has another type."""
    value = schema.get(name, default)
    if name in schema and not isinstance(value, kind):
        raise ValueError(f"{name} of a schema is no {kind.__name__}")
    return value


def in_order(out: Writing, name: str, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return a sequence of items with `separator` between them; optional ones may be missing."""
    first = more = ""
    for number, (item, required) in reversed(list(enumerate(items))):
        here = out.rule(f"{name}_{number}", f"{item} {more}".strip())
        behind = f"{separator} {here}".strip()
        if required:
            first, more = here, out.rule(f"{name}_{number}_more", behind)
        else:
            skipped = [more] if more else []
            first = out.rule(f"{name}_{number}_first", here, *([first] if first else [""]))
            more = out.rule(f"{name}_{number}_more", behind, *(skipped or [""]))
    return first


def literals(schema: Any) -> list[Any] | None:
    """Return the values of a schema that lists all of them."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def only(schema: Any, kind: str) -> bool:
    """Return whether a schema has only a type."""
    return isinstance(schema, dict) and schema.keys() - NOTES == {"type"} and schema["type"] == kind


def with_definitions(schema: Any, root: dict[str, Any]) -> Any:
    """Return a part of a schema as a schema of its own."""
    if not isinstance(schema, dict):
        return schema
    return {**{k: root[k] for k in ("$defs", "definitions") if k in root}, **schema}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a text for use inside /…/."""
    return slashes(re.escape(text))


def without(text: str, marks: Sequence[str]) -> str:
    """Return a terminal of text without any of the marks: one complement, because each is slow."""
    spelled = "|".join(map(escaped, marks))
    return f"{text} & ~/(?s:.*)({spelled})(?s:.*)/" if marks else text


def raw_text(schema: Any, where: str) -> str:
    """Return a terminal for a text in a union, which `read_value` cannot read as another type."""
    if (values := literals(schema)) is not None:
        plain = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        return f"({' | '.join(map(quoted, plain))})"
    if not isinstance(schema, dict):
        raise ValueError(f"{where} is no schema of one type")
    match schema.get("type"):
        case "null":
            return '"null"'
        case "boolean":
            return '("true" | "false")'
        case "integer" if not schema.keys() - NOTES - {"type"}:
            return "/-?(0|[1-9][0-9]{0,17})/"
        case "string":
            return text_of(schema, where)
    raise ValueError(f"{where} may be a text or something else with limits, which are not held to")


def text_of(schema: dict[str, Any], where: str) -> str:
    """Return the grammar of a text without quotes."""
    if unknown := sorted(schema.keys() - _OF_TEXTS - NOTES):
        raise ValueError(f"{where} has {unknown[0]}, which texts in this format are not held to")
    least, most = typed(schema, "minLength", int, 0), typed(schema, "maxLength", int, "")
    parts = [f"/(?s:.){{{least},{most}}}/"]
    if pattern := typed(schema, "pattern", str, ""):
        begin = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        inner = pattern.removeprefix("^").removesuffix("$" if not end else "")
        parts.append(f"/{begin}({slashes(inner)}){end}/")
    if form := typed(schema, "format", str, ""):
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise ValueError(
                f"{where} has the format {form!r}, which texts in this format of calls are not "
                f"held to; known: {known}"
            )
        parts += [f"/{slashes(expression)}/" for expression in FORMATS[form]]
    return f"({' & '.join(parts)})"
