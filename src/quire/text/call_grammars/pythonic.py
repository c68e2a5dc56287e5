"""Calls as Python writes them: see `server/tools/pythonic`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from quire.text.call_grammars import writing
from quire.text.json_types import resolved


def pythonic(out: writing.Writing, functions: Sequence[writing.Function]) -> None:
    """Return the grammar: the text is `[name(key=value, …), …]`, or has no calls."""
    mark = "<|python_start|>"
    start = f"({out.text(mark)})? " if mark in out.specials else ""
    begins = rf"[ \t\n\r]*({re.escape(mark)})?[ \t\n\r]*\[[ \t\n\r]*"
    if out.otherwise is None:
        out.rule("start", f"{start}(calls TEXT | FREE)")
        out.rule("TEXT", writing.ANY)
        out.rule("FREE", f"{writing.ANY} & ~/{begins}[A-Za-z0-9_.\\-]+\\((?s:.*)/")
    else:
        out.rule("start", f"{start}calls", out.json("otherwise", out.otherwise))
    out.rule("SEPARATOR", "/, ?/")
    heads, calls = [], []
    for index, function in enumerate(functions):
        arguments = _python_arguments(out, function, index)
        begins_once = begins.replace("*", "{0,2}")
        out.rule(f"HEAD_{index}", f"/{begins_once}{re.escape(function.name)}\\(/")
        heads.append(f'HEAD_{index} {arguments} ")"')
        calls.append(f'{writing.quoted(function.name + "(")} {arguments} ")"')
    out.rule("first", *heads)
    out.rule("call", *calls)
    out.rule("calls", 'first (SEPARATOR call)* "]"')


def _python_arguments(out: writing.Writing, function: writing.Function, index: int) -> str:
    if function.schema is None:
        value = out.json(f"value_{index}", {})
        out.rule(f"KEY_{index}", "/[A-Za-z_][A-Za-z0-9_]{0,63}=/")
        return f"(KEY_{index} {value} (SEPARATOR KEY_{index} {value})*)?"
    items = []
    for number, (key, schema, required) in enumerate(writing.parameters(function)):
        if not re.fullmatch(r"[A-Za-z0-9_.\-]+", key):
            raise ValueError(f"{function.name}: {key!r} is no name of a keyword argument")
        name = f"value_{index}_{number}"
        value = _python_value(out, name, schema, function.schema)
        items.append((f"{writing.quoted(key + '=')} {value}", required))
    return writing.in_order(out, f"arguments_{index}", items, "SEPARATOR")


def _python_value(out: writing.Writing, name: str, schema: Any, root: dict[str, Any]) -> str:
    """Write enumerated values and texts as Python does; values inside lists are JSON."""
    found = resolved(schema, root)
    values = writing.literals(found)
    if values is not None and all(isinstance(v, str | int | float | None) for v in values):
        return out.rule(name.upper(), *(writing.quoted(_python(value)) for value in values))
    if writing.only(found, "boolean"):
        return out.rule(name.upper(), '"True"', '"False"')
    if writing.only(found, "string"):
        return out.rule(name.upper(), *map(_python_text, "\"'"))
    return out.json(name, writing.with_definitions(schema, root))


def _python_text(quote: str) -> str:
    return rf"/{quote}(\\[{quote}\\nrt]|[^{quote}\\\x00-\x1F\x7F])*{quote}/"


def _python(value: Any) -> str:
    words = {None: "None", True: "True", False: "False"}
    if value is None or isinstance(value, bool):
        return words[value]
    return json.dumps(value, ensure_ascii=False)
