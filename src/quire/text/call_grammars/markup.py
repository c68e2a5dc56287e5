"""Calls between tags: see `text/markup` and `server/tools/markup`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quire.text.call_grammars import writing
from quire.text.composition import pieces, until
from quire.text.json_types import ALL, allowed_types, alternatives, resolved
from quire.text.markup import Markup


def markup(out: writing.Writing, functions: Sequence[writing.Function], tags: Markup) -> None:
    """Return the grammar: the mark around calls begins one, or in some formats a function's tag."""
    if out.otherwise is None:
        out.rule("TEXT", writing.ANY)
    raw = writing.without(writing.ANY, [mark for mark in tags.ends if mark not in out.specials])
    out.rule("RAW", raw if tags.newlines != "both" else f"{raw} & ~/\\n(?s:.*)\\n/")
    heads = []
    for index, function in enumerate(functions):
        if re.search(r"[<>{}\[\]\s\"']", function.name):
            raise ValueError(f"{function.name!r} is no name of a function in this format")
        head = tags.head.replace("{name}", function.name)
        body = f"{_arguments(out, function, index, tags)} {out.text(tags.tail)}"
        heads.append((head, out.rule(f"body_{index}", body)))
    out.rule("call", *(f"{out.text(head)} {body}" for head, body in heads))
    starts = []
    alone = out.otherwise is not None
    for number, (begin, end) in enumerate(tags.blocks.items()):
        first, *rest = pieces(begin, out.specials)
        if not alone:
            out.lines.append(until(f"wrapped_{number}", [[first]]))
            first = f"wrapped_{number}"
        calls = "call+" if tags.several else "call"
        lead = [first, *rest, *pieces(tags.lead, out.specials)]
        starts.append(" ".join([*lead, calls, out.text(end)]))
    if tags.bare:
        names = (
            f"{writing.quoted(head.partition(tags.function)[2])} {body}" for head, body in heads
        )
        first = writing.quoted(tags.function)
        if not alone:
            out.lines.append(until("bare", [[first]]))
            first = "bare"
        starts.append(f"{first} {out.rule('named', *names)}")
    if alone:
        out.start(*starts)
    else:
        out.rule("start", f"({' | '.join(starts)})* TEXT")


def _arguments(out: writing.Writing, function: writing.Function, index: int, tags: Markup) -> str:
    if function.schema is None:
        key = f"KEY_{index}"
        out.rule(key, "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/")
        texts = [_tag(out, tags, key, text) for text in (True, False)[: 1 + tags.says_type]]
        values = [
            out.ended(f"ANY_{index}", "RAW", tags.after),
            f"{out.json(f'any_{index}', {})} {out.text(tags.after)}",
        ]
        pairs = zip(texts, values, strict=False)
        return f"({' | '.join(f'{tag} {value}' for tag, value in pairs)})*"
    items = []
    for number, (key, schema, required) in enumerate(writing.parameters(function)):
        if not key or key != key.strip() or re.search(r"[<>\n\"']", key):
            raise ValueError(f"{function.name}: {key!r} is no name of a parameter in this format")
        where = f"{function.name}: {key}"
        value = _value(out, f"value_{index}_{number}", schema, function.schema, where, tags)
        both = [f"{_tag(out, tags, writing.quoted(key), text)} {each}" for text, each in value]
        items.append((f"({' | '.join(both)})", required))
    return writing.in_order(out, f"arguments_{index}", items, "")


def _tag(out: writing.Writing, tags: Markup, key: str, text: bool) -> str:
    """Write the tags before a value; `key` is in Lark."""
    begin, end = tags.before.replace("{string}", "true" if text else "false").split("{key}")
    return " ".join(filter(None, [out.text(begin), key, out.text(end)]))


def _value(
    out: writing.Writing, name: str, schema: Any, root: dict[str, Any], where: str, tags: Markup
) -> list[tuple[bool, str]]:
    """Return ways to write a value and its end, and whether each is a text (without quotes)."""

    def json(schema: Any) -> tuple[bool, str]:
        return (
            False,
            f"{out.json(name, writing.with_definitions(schema, root))} {out.text(tags.after)}",
        )

    def text(schemas: Sequence[Any]) -> tuple[bool, str]:
        terms = " | ".join(writing.raw_text(each, where) for each in schemas)
        raw = out.rule(f"{name.upper()}_TEXT", f"RAW & ({terms})")
        return True, out.ended(name.upper(), raw, tags.after)

    types = allowed_types(schema, root)
    if "string" not in types:
        return [json(schema)]
    plain = resolved(schema, root)
    if plain is True or (
        types == ALL and isinstance(plain, dict) and not plain.keys() - writing.NOTES
    ):
        return [(True, out.ended(name.upper(), "RAW", tags.after))]
    found = alternatives(schema, root)
    if not tags.says_type:
        return [text(found)]
    found = [part for each in found for part in _by_type(each)]
    texts = [each for each in found if "string" in allowed_types(each, root)]
    rest = [each for each in found if each not in texts]
    return [text(texts), *([json({"anyOf": rest})] if rest else [])]


def _by_type(schema: Any) -> list[Any]:
    """Split a schema of single values into one of texts and one of others."""
    values = writing.literals(schema) or []
    texts = [value for value in values if isinstance(value, str)]
    rest = [value for value in values if not isinstance(value, str)]
    return [{"enum": texts}, {"enum": rest}] if texts and rest else [schema]
