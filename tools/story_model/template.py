"""A small template language for text with choices.

``[a|b]`` picks one branch, ``[? a]`` keeps ``a`` only sometimes, ``{slot}`` inserts a value
(``{Slot}`` with a capital), ``<rule>`` picks one alternative of a named rule, ``a(n)`` becomes
"a" or "an", and a blank line starts a paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

_TOKEN = re.compile(r"\[\?|\[|\||\]|\{\w+\}|<\w+>|[^\[\]|{}<>]+")


def entries(text: str) -> tuple[str, ...]:
    """One entry a line, or several with `` / `` between; an indented line continues the last."""
    joined = re.sub(r"\n\s+", " ", text.strip())
    return tuple(entry.strip() for line in joined.split("\n") for entry in line.split(" / "))


@dataclass(frozen=True)
class Choice:
    branches: tuple[tuple[Node, ...], ...]
    optional: bool = False


@dataclass(frozen=True)
class Slot:
    name: str


@dataclass(frozen=True)
class Rule:
    name: str


Node = str | Choice | Slot | Rule


@cache
def parse(text: str) -> tuple[Node, ...]:
    """The nodes of a template; raises ValueError on unbalanced brackets."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"stray bracket in template: {text[:80]!r}")
    nodes, end = _sequence(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"unbalanced template: {text[:80]!r}")
    return nodes


def _sequence(tokens: Sequence[str], at: int) -> tuple[tuple[Node, ...], int]:
    nodes: list[Node] = []
    while at < len(tokens) and tokens[at] not in ("|", "]"):
        token = tokens[at]
        if token in ("[", "[?"):
            branches: list[tuple[Node, ...]] = []
            while True:
                branch, at = _sequence(tokens, at + 1)
                branches.append(branch)
                if at >= len(tokens):
                    raise ValueError("missing ] in template")
                if tokens[at] == "]":
                    break
            nodes.append(Choice(tuple(branches), token == "[?"))
        elif token[0] == "{":
            nodes.append(Slot(token[1:-1]))
        elif token[0] == "<":
            nodes.append(Rule(token[1:-1]))
        else:
            nodes.append(token)
        at += 1
    return tuple(nodes), at


@dataclass(frozen=True)
class Writer:
    """Expands templates for one story: its slots, its rules and how much detail to keep."""

    rng: Random
    slots: Mapping[str, str]
    rules: Mapping[str, Sequence[str]]
    detail: float = 0.5

    def write(self, template: str) -> str:
        return tidy(self._expand(parse(template)))

    def _expand(self, nodes: Sequence[Node]) -> str:
        out: list[str] = []
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
            elif isinstance(node, Slot):
                out.append(self._slot(node.name))
            elif isinstance(node, Rule):
                out.append(self._expand(parse(self.rng.choice(self.rules[node.name]))))
            elif not node.optional or self.rng.random() < self.detail:
                out.append(self._expand(self.rng.choice(node.branches)))
        return "".join(out)

    def _slot(self, name: str) -> str:
        if name in self.slots:
            return self.slots[name]
        value = self.slots[name[0].lower() + name[1:]]
        return value[:1].upper() + value[1:]


def tidy(text: str) -> str:
    """One space between words, one blank line between paragraphs, and the right article."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", text))
    joined = "\n\n".join(part for part in paragraphs if part)
    joined = re.sub(r" +([.,!?;:])", r"\1", joined)
    return re.sub(r"\b([Aa])\(n\) (\"?)(\w+)", _article, joined)


def _article(match: re.Match[str]) -> str:
    article, quote, word = match.groups()
    return f"{article}{'n' if starts_with_vowel_sound(word) else ''} {quote}{word}"


def starts_with_vowel_sound(word: str) -> bool:
    lower = word.lower()
    if lower.startswith(("uni", "use", "ukulele", "one", "eu", "ewe")):
        return False
    return lower[0] in "aeiou" or lower.startswith(("hour", "honest"))
