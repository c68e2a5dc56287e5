"""Calls of functions as models write them that do not write JSON around the arguments.

Each format is a grammar in Lark of a whole text: free, but that whatever its reader in
`server/tools` would take for a call is one of the functions, with arguments of its schema. Free
text is the complement of that, so that no spelling of a call slips through. The arguments'
schemas are grammars of their own, by name, wherever a value is written in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from quire.text.composition import Specials, pieces, slashes, until
from quire.text.json_types import ALL, allowed_types, alternatives, resolved
from quire.text.string_formats import FORMATS

_ANY = "/(?s:.*)/"
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties"}
_NOTES = {"title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id",
          "$comment", "deprecated"}  # fmt: skip
_OF_TEXTS = {"type", "pattern", "minLength", "maxLength", "format", "enum", "const"}
_MARK = "</parameter>"


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """What may be called; without a schema, its arguments are any object."""

    name: str
    schema: dict[str, Any] | None = None


class FunctionCalls(msgspec.Struct, forbid_unknown_fields=True):
    """The calls of a text, in a format that `server/tools` reads under the same name."""

    format: Literal["pythonic", "qwen3_coder", "openai"]
    functions: list[Function]
    type: Literal["function_calls"] = "function_calls"


@dataclass(slots=True)
class Writing:
    """A grammar in the making: lines of Lark, and the schemas that it refers to by `@name`."""

    specials: Specials
    lines: list[str] = field(default_factory=list)
    schemas: dict[str, Any] = field(default_factory=dict)

    def rule(self, name: str, *alternatives: str) -> str:
        """A rule, or a terminal where the name is in capitals."""
        self.lines.append(f"{name}: {' | '.join(alternatives)}")
        return name

    def json(self, name: str, schema: Any) -> str:
        """A value in JSON."""
        self.schemas[name] = schema
        return f"@{name}"

    def text(self, text: str) -> str:
        """A text as it stands, with control tokens."""
        return " ".join(pieces(text, self.specials))

    @property
    def lark(self) -> str:
        return "\n".join(self.lines)


def write_calls(calls: FunctionCalls, specials: Specials) -> Writing:
    """The grammar of a text with calls.

    Raises:
        ValueError: a schema says what arguments in this format are not held to.
    """
    writing = Writing(specials)
    _FORMATS[calls.format](writing, calls.functions)
    return writing


def _pythonic(out: Writing, functions: Sequence[Function]) -> None:
    """`[name(key=value, …), …]` is all of the text up to its bracket, or there is none."""
    mark = "<|python_start|>"
    start = f"({out.text(mark)})? " if mark in out.specials else ""
    begins = rf"[ \t\n\r]*({re.escape(mark)})?[ \t\n\r]*\[[ \t\n\r]*"
    out.rule("start", f"{start}(calls TEXT | FREE)")
    out.rule("TEXT", _ANY)
    out.rule("FREE", f"{_ANY} & ~/{begins}[A-Za-z0-9_.\\-]+\\((?s:.*)/")
    out.rule("SEPARATOR", "/, ?/")
    heads, calls = [], []
    for index, function in enumerate(functions):
        arguments = _python_arguments(out, function, index)
        begins_once = begins.replace("*", "{0,2}")
        out.rule(f"HEAD_{index}", f"/{begins_once}{re.escape(function.name)}\\(/")
        heads.append(f'HEAD_{index} {arguments} ")"')
        calls.append(f'{_quoted(function.name + "(")} {arguments} ")"')
    out.rule("first", *heads)
    out.rule("call", *calls)
    out.rule("calls", 'first (SEPARATOR call)* "]"')


def _python_arguments(out: Writing, function: Function, index: int) -> str:
    if function.schema is None:
        value = out.json(f"value_{index}", {})
        out.rule(f"KEY_{index}", "/[A-Za-z_][A-Za-z0-9_]{0,63}=/")
        return f"(KEY_{index} {value} (SEPARATOR KEY_{index} {value})*)?"
    items = []
    for number, (key, schema, required) in enumerate(_parameters(function)):
        if not re.fullmatch(r"[A-Za-z0-9_.\-]+", key):
            raise ValueError(f"{function.name}: {key!r} is no name of a keyword argument")
        name = f"value_{index}_{number}"
        value = _python_value(out, name, schema, function.schema)
        items.append((f"{_quoted(key + '=')} {value}", required))
    return _in_order(out, f"arguments_{index}", items, "SEPARATOR")


def _python_value(out: Writing, name: str, schema: Any, root: dict[str, Any]) -> str:
    """As Python writes it where it is one of few, or a text; inside of lists, JSON does as well."""
    found = resolved(schema, root)
    literals = _literals(found)
    if literals is not None and all(isinstance(v, str | int | float | None) for v in literals):
        return out.rule(name.upper(), *(_quoted(_python(value)) for value in literals))
    if _only(found, "boolean"):
        return out.rule(name.upper(), '"True"', '"False"')
    if _only(found, "string"):
        return out.rule(name.upper(), *map(_python_text, "\"'"))
    return out.json(name, _with_definitions(schema, root))


def _python_text(quote: str) -> str:
    return rf"/{quote}(\\[{quote}\\nrt]|[^{quote}\\\x00-\x1F\x7F])*{quote}/"


def _qwen3_coder(out: Writing, functions: Sequence[Function]) -> None:
    """`<tool_call>` begins a call, and so does `<function=` alone."""
    out.rule("TEXT", _ANY)
    out.rule("RAW", f"{_ANY} & ~/(?s:.*){_escaped(_MARK)}(?s:.*)/")
    bodies = []
    for index, function in enumerate(functions):
        if re.search(r"[>\s]", function.name):
            raise ValueError(f"{function.name!r} is no name of a function in this format")
        arguments = _xml_arguments(out, function, index)
        bodies.append(f'{_quoted(function.name + ">" + chr(10))} {arguments} "</function>"')
    out.rule("body", *bodies)
    [wrapped, *rest], bare = pieces("<tool_call>", out.specials), _quoted("<function=")
    out.lines += [until("wrapped", [[wrapped]]), until("bare", [[bare]])]
    begin = " ".join([*rest, out.text("\n<function=")])
    end = out.text("\n</tool_call>")
    out.rule("start", f"(wrapped {begin} body {end} | bare body)* TEXT")


def _xml_arguments(out: Writing, function: Function, index: int) -> str:
    if function.schema is None:
        out.rule(f"KEY_{index}", "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/")
        out.rule(f"ANY_{index}", f'RAW "\\n{_MARK}\\n"')
        return f'("<parameter=" KEY_{index} ">\\n" ANY_{index})*'
    items = []
    for number, (key, schema, required) in enumerate(_parameters(function)):
        if not key or key != key.strip() or re.search(r"[>\n]", key):
            raise ValueError(f"{function.name}: {key!r} is no name of a parameter in this format")
        where = f"{function.name}: {key}"
        value = _xml_value(out, f"value_{index}_{number}", schema, function.schema, where)
        items.append((f"{_quoted(f'<parameter={key}>' + chr(10))} {value}", required))
    return _in_order(out, f"arguments_{index}", items, "")


def _xml_value(out: Writing, name: str, schema: Any, root: dict[str, Any], where: str) -> str:
    """Texts stand for themselves; all else is JSON."""
    end = f"\\n{_MARK}\\n"
    types = allowed_types(schema, root)
    if "string" not in types:
        return f'{out.json(name, _with_definitions(schema, root))} "{end}"'
    plain = resolved(schema, root)
    if plain is True or (types == ALL and isinstance(plain, dict) and not plain.keys() - _NOTES):
        return out.rule(name.upper(), f'RAW "{end}"')
    texts = [_raw_text(each, where) for each in alternatives(schema, root)]
    out.rule(f"{name.upper()}_TEXT", f"RAW & ({' | '.join(texts)})")
    return out.rule(name.upper(), f'{name.upper()}_TEXT "{end}"')


def _raw_text(schema: Any, where: str) -> str:
    """One of a union that a text is one of, as a terminal; `read_value` takes it for no other."""
    if (literals := _literals(schema)) is not None:
        plain = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in literals]
        return f"({' | '.join(map(_quoted, plain))})"
    if not isinstance(schema, dict):
        raise ValueError(f"{where} is no schema of one type")
    match schema.get("type"):
        case "null":
            return '"null"'
        case "boolean":
            return '("true" | "false")'
        case "integer" if not schema.keys() - _NOTES - {"type"}:
            return "/-?(0|[1-9][0-9]{0,17})/"
        case "string":
            return _text_of(schema, where)
    raise ValueError(f"{where} may be a text or something else with limits, which are not held to")


def _text_of(schema: dict[str, Any], where: str) -> str:
    """A text that is written without quotes."""
    if unknown := sorted(schema.keys() - _OF_TEXTS - _NOTES):
        raise ValueError(f"{where} has {unknown[0]}, which texts in this format are not held to")
    least, most = _typed(schema, "minLength", int, 0), _typed(schema, "maxLength", int, "")
    parts = [f"/(?s:.){{{least},{most}}}/"]
    if pattern := _typed(schema, "pattern", str, ""):
        begin = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        inner = pattern.removeprefix("^").removesuffix("$" if not end else "")
        parts.append(f"/{begin}({slashes(inner)}){end}/")
    if form := _typed(schema, "format", str, ""):
        if form not in FORMATS:
            known = ", ".join(FORMATS)
            raise ValueError(
                f"{where} has the format {form!r}, which texts in this format of calls are not "
                f"held to; known: {known}"
            )
        parts += [f"/{slashes(expression)}/" for expression in FORMATS[form]]
    return f"({' & '.join(parts)})"


def _openai(out: Writing, functions: Sequence[Function]) -> None:
    """Harmony: messages, of which those to a function have its arguments for a body."""
    free = f"{_ANY} & ~/(?s:.*)to=functions\\.(?s:.*)/"
    out.rule("WORD", "/(commentary|analysis)( (json|code)?)?/")
    role = _span(out, "role", free, ["<|channel|>"])
    header = _span(out, "header", free, ["<|message|>"])
    ends = ["<|end|>", "<|call|>", "<|return|>"]
    body = _span(out, "body", _ANY, ends)
    channel, message, start = (out.text(f"<|{m}|>") for m in ("channel", "message", "start"))
    constrain = f'({out.text("<|constrain|>")} "json")?'
    heads = []
    for index, function in enumerate(functions):
        to = f"to=functions\\.{re.escape(function.name)}"
        out.rule(f"CHANNEL_{index}", f"/(commentary|analysis) {to}( (json|code)?)?/")
        out.rule(f"ROLE_{index}", f"/(assistant)? ?{to} ?/")
        schema = {"type": "object"} if function.schema is None else function.schema
        heads.append(
            f"({role} CHANNEL_{index} | ROLE_{index} {channel} WORD) {constrain} {message} "
            f"{out.json(f'arguments_{index}', schema)}"
        )
    out.rule("call", *heads)
    out.rule("end", *map(out.text, ends))
    ended = f"{role} {header} {body} | call end"
    opened = f"{role} {header} BODY_OPEN | call"
    out.rule("BODY_OPEN", _without(_ANY, [e for e in ends if e not in out.specials]))
    out.rule("ended", f"({start})? ({ended})")
    out.rule("opened", f"({start})? ({opened})")
    out.rule("start", "ended* opened?")


def _span(out: Writing, name: str, text: str, marks: Sequence[str]) -> str:
    """Text up to the first of `marks`, which is a part of it."""
    spelled = [mark for mark in marks if mark not in out.specials]
    terminal, options = name.upper(), []
    out.rule(f"{terminal}_TEXT", _without(text, spelled))
    if control := [out.text(mark) for mark in marks if mark in out.specials]:
        options.append(f"{terminal}_TEXT ({' | '.join(control)})")
    if spelled:
        options.append(
            out.rule(
                f"{terminal}_SPELLED", f"{terminal}_TEXT ({' | '.join(map(_quoted, spelled))})"
            )
        )
    return out.rule(name, *options)


def _without(text: str, marks: Sequence[str]) -> str:
    return " & ".join([text, *(f"~/(?s:.*){_escaped(mark)}(?s:.*)/" for mark in marks)])


def _parameters(function: Function) -> Iterator[tuple[str, Any, bool]]:
    """A function's parameters in order: name, schema, and whether it has to be there."""
    schema = function.schema or {}
    if unknown := sorted(schema.keys() - _OF_OBJECTS - _NOTES):
        raise ValueError(
            f"{function.name}: its parameters have {unknown[0]}, which arguments in this format "
            "are not held to"
        )
    properties = _typed(schema, "properties", dict, {})
    required = _typed(schema, "required", list, [])
    if not all(isinstance(name, str) for name in required):
        raise ValueError(f"{function.name}: required is no list of names")
    if missing := sorted(set(required) - set(properties)):
        raise ValueError(f"{function.name}: {missing[0]!r} is required, and no property")
    for key, value in properties.items():
        yield key, value, key in required


def _typed(schema: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A keyword's value; raises `ValueError` where it is of another type."""
    value = schema.get(name, default)
    if name in schema and not isinstance(value, kind):
        raise ValueError(f"{name} of a schema is no {kind.__name__}")
    return value


def _in_order(out: Writing, name: str, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Items one behind the other, the optional ones or not, with `separator` between them."""
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


def _literals(schema: Any) -> list[Any] | None:
    """The values of a schema that names them all."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def _only(schema: Any, kind: str) -> bool:
    """Whether all that it says is the type."""
    return (
        isinstance(schema, dict) and schema.keys() - _NOTES == {"type"} and schema["type"] == kind
    )


def _with_definitions(schema: Any, root: dict[str, Any]) -> Any:
    """A part of a schema that can stand alone."""
    if not isinstance(schema, dict):
        return schema
    return {**{k: root[k] for k in ("$defs", "definitions") if k in root}, **schema}


def _python(value: Any) -> str:
    words = {None: "None", True: "True", False: "False"}
    if value is None or isinstance(value, bool):
        return words[value]
    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A text inside of /…/."""
    return slashes(re.escape(text))


_FORMATS: dict[str, Callable[[Writing, Sequence[Function]], None]] = {
    "pythonic": _pythonic,
    "qwen3_coder": _qwen3_coder,
    "openai": _openai,
}
