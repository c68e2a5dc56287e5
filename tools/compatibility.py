"""Write the tables of docs/compatibility.md: `python -m tools.compatibility`.

They come from the request types: fields that a type lacks are ignored or refused by its rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import quire.server.app  # noqa: F401 -- defines all types of requests
from quire.server.anthropic.protocol import CountRequest
from quire.server.openai.pooling_protocol import CommonPooling
from quire.server.openai.protocol import CommonRequest
from quire.server.responses.protocol import ResponsesRequest
from quire.server.rules import Rule, Rules, Strict, refused

PATH = Path(__file__).parents[1] / "docs/compatibility.md"
BEGIN = "<!-- tables: written by `python -m tools.compatibility` -->"
HEAD = ["| field | what happens | why, or what to send |", "|---|---|---|"]

BASES: dict[type[Strict], str] = {
    CommonRequest: "Completions and chat completions",
    CountRequest: "POST /v1/messages and /v1/messages/count_tokens",
    CommonPooling: "Embeddings, scores and pooling",
}
"""Types whose fields belong to several endpoints, with the title of their table."""


def tables() -> str:
    """Return a table of what all endpoints share, one per endpoint, and one of nested objects."""
    every = {kind: _rules(kind) for kind in _kinds(Strict)}
    generation = [every[kind] for kind in (CommonRequest, CountRequest, ResponsesRequest)]
    shared = {
        name: rule
        for name, rule in generation[0].items()
        if all(rules.get(name) == rule for rules in generation)
    }
    parts = ["### All endpoints that generate text", "", *HEAD, *_rows(shared), ""]
    inside: list[str] = []
    for kind in sorted(every, key=_title):
        if not (rules := {n: r for n, r in every[kind].items() if shared.get(n) != r}):
            continue
        if kind in BASES or _title(kind).startswith("POST /"):
            parts += [f"### {_title(kind)}", "", *HEAD, *_rows(rules), ""]
        else:
            inside += [f"| `{_title(kind)}` {row}" for row in _rows(rules)]
    parts += ["### Objects inside of requests", "", f"| object {HEAD[0]}", f"|---{HEAD[1]}"]
    return "\n".join([*parts, *inside, ""])


def page(text: str) -> str:
    """Return the page with fresh tables."""
    head, _, _ = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables()}"


def _kinds(kind: type[Strict]) -> Iterator[type[Strict]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _title(kind: type[Strict]) -> str:
    """Return the endpoint of a request, or the name of an object."""
    first = (kind.__doc__ or "").strip().partition("\n")[0]
    endpoint = first.partition(":")[0].rstrip(".") if first.startswith("POST /") else ""
    return BASES.get(kind) or endpoint or kind.__name__.strip("_")


def _rules(kind: type[Strict]) -> dict[str, Rule]:
    """Return a type's own rules for fields that it lacks or inherits and takes back."""
    own: Rules = vars(kind).get("rules", {})
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    nulls = {
        name
        for name, field in fields.items()
        if field.type is type(None) and field.name in vars(kind).get("__annotations__", {})
    }
    names = sorted(own.keys() - fields.keys() | nulls)
    return {name: own.get(name) or refused("Leave it out of the request.") for name in names}


def _rows(rules: Mapping[str, Rule]) -> Iterator[str]:
    """Yield one row per verdict and reason, with all its fields."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, rule in rules.items():
        neutral = ", ".join(f"`{json.dumps(value)}`" for value in rule.neutral or ())
        field = f"`{name}` (except {neutral})" if neutral else f"`{name}`"
        groups.setdefault((rule.neutral is None, rule.reason), []).append(field)
    for (is_ignored, reason), names in groups.items():
        yield f"| {', '.join(names)} | {'ignored' if is_ignored else 'refused'} | {reason} |"


if __name__ == "__main__":
    PATH.write_text(page(PATH.read_text()))
