"""As much of PromQL's grammar as it takes to see which metrics and labels an expression names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FUNCTIONS = {
    *("sum", "max", "rate", "increase", "avg_over_time", "histogram_quantile", "label_values"),
}
GROUPINGS = {"by", "without", "on", "ignoring"}
OPERATORS = {"and", "or", "unless"}
COUNTED = ("_total", "_bucket", "_sum", "_count")
_TOKEN = re.compile(
    r"""\s+ | (?P<text>"[^"]*") | (?P<name>[A-Za-z_:][\w:]*) | (?P<number>\d+(\.\d+)?)
    | (?P<range>\[\w+\]) | (?P<mark>=~|!~|!=|==|>=|<=|[-+*/<>={}(),])""",
    re.VERBOSE,
)


class PromQLError(Exception):
    """What is not in this part of the grammar, or brackets that do not match."""


@dataclass
class Selector:
    """A metric as an expression names it: label → the values that it matches, split at "|"."""

    metric: str
    matchers: dict[str, list[str]] = field(default_factory=dict)
    is_range: bool = False


@dataclass
class Expression:
    selectors: list[Selector]
    grouped: set[str]
    """Labels that results are grouped by."""


def parse(text: str) -> Expression:
    """The metrics and labels of an expression.

    Raises:
        PromQLError: what cannot be read.
    """
    tokens = _tokens(text)
    found = Expression([], set())
    depth = 0
    i = 0
    while i < len(tokens):
        kind, word = tokens[i]
        follows = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0:
            raise PromQLError(f"unmatched ) in {text}")
        if kind == "name" and word in GROUPINGS:
            end = tokens.index(("mark", ")"), i)
            found.grouped |= {name for k, name in tokens[i:end][2:] if k == "name"}
            i = end
        elif kind == "name" and (follows == "(" or follows in GROUPINGS):
            if word not in FUNCTIONS:
                raise PromQLError(f"unknown function {word} in {text}")
        elif kind == "name" and word not in OPERATORS:
            i = _selector(tokens, i, found)
        elif word in {"{", "}"} or kind == "range":
            raise PromQLError(f"{word} after no metric in {text}")
        i += 1
    if depth:
        raise PromQLError(f"unmatched ( in {text}")
    return found


def _selector(tokens: list[tuple[str, str]], i: int, found: Expression) -> int:
    """Read the metric at `i`; the index of its last token."""
    selector = Selector(tokens[i][1])
    found.selectors.append(selector)
    if tokens[i + 1 : i + 2] == [("mark", "{")]:
        end = tokens.index(("mark", "}"), i)
        inside = tokens[i + 2 : end]
        for start in range(0, len(inside), 4):
            matcher = inside[start : start + 3]
            if [kind for kind, _ in matcher] != ["name", "mark", "text"]:
                raise PromQLError(f"not a matcher: {matcher}")
            (_, label), _, (_, value) = matcher
            selector.matchers[label] = value.strip('"').split("|")
        i = end
    if i + 1 < len(tokens) and tokens[i + 1][0] == "range":
        selector.is_range = True
        i += 1
    return i


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PromQLError(f"cannot read {text[at : at + 20]!r}")
        if match.lastgroup is not None:
            tokens.append((match.lastgroup, match.group()))
        at = match.end()
    return tokens
