"""Write the tables of docs/compatibility.md: `python -m tools.compatibility`.

They come from the request types: fields that a type lacks are ignored or refused by its rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

import quire.server.app  # noqa: F401 -- defines all types of requests
from quire.server.openai.protocol import Strict
from quire.server.rules import Rule

PATH = Path(__file__).parents[1] / "docs/compatibility.md"
BEGIN = "<!-- tables: written by `python -m tools.compatibility` -->"


def tables() -> str:
    """Return one table per type that has rules."""
    parts: list[str] = []
    for kind in sorted(_kinds(Strict), key=lambda kind: (kind.__module__, kind.__name__)):
        if rows := [*_rows(kind)]:
            about = (kind.__doc__ or "").strip().partition("\n")[0]
            parts += [f"### {kind.__name__}", "", *([about, ""] if about else [])]
            parts += ["| field | what happens | why, or what to send |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def page(text: str) -> str:
    """Return the page with fresh tables."""
    head, _, _ = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables()}"


def _kinds(kind: type[Strict]) -> Iterator[type[Strict]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _rows(kind: type[Strict]) -> Iterator[str]:
    rules: dict[str, Rule] = vars(kind).get("rules", {})
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    nulls = {
        name
        for name, field in fields.items()
        if field.type is type(None) and field.name in vars(kind).get("__annotations__", {})
    }
    for name in sorted(rules.keys() - fields.keys() | nulls):
        rule = rules.get(name)
        if rule is None:
            yield f"| `{name}` | refused | Leave it out of the request. |"
        elif rule.neutral is None:
            yield f"| `{name}` | ignored | {rule.reason} |"
        else:
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in rule.neutral)
            what = f"refused, except {neutral}" if neutral else "refused"
            yield f"| `{name}` | {what} | {rule.reason} |"


if __name__ == "__main__":
    PATH.write_text(page(PATH.read_text()))
