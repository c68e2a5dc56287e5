"""Place a structure: as the whole text, or after the reasoning.

The structure consists of grammars of llguidance. This module writes a Lark grammar around them.
Marks that are control tokens of the model are written as control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from quire.core.structured_outputs import ReasoningMarks
from quire.text.guard import any_of

Specials = Mapping[str, int]
"""Control tokens: text → id."""
Grammar = dict[str, Any]
"""A grammar of llguidance without its name; it refers to its `parts` by `@leaf_0` …"""

# Forced text is not computed ahead. That would make masks slower for longer texts, and would force
# one tokenization, which may not be the model's own.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
_TERMINALS = "TEXT: /(.|\\n)*/\nGAP: /[ \\t\\r\\n]{1,8}/\n"


class Tagged(msgspec.Struct, forbid_unknown_fields=True):
    """A structure between two texts."""

    begin: str
    schema: dict[str, Any] | bool
    end: str


class StructuralTag(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structural_tag`: free text, in which each trigger begins one of the structures.

    `end` follows the complete structure; then the text is free again.

    Attributes:
        otherwise: a schema. If set, no text is free: it is JSON of this schema, or only tags.
    """

    structures: list[Tagged]
    triggers: list[str]
    otherwise: dict[str, Any] | bool | None = None
    type: Literal["structural_tag"] = "structural_tag"

    def __post_init__(self) -> None:
        if not self.structures or not all(self.triggers):
            raise ValueError("it needs structures, and triggers that are not empty")
        for each in self.structures:
            if not each.begin.startswith(tuple(self.triggers)):
                raise ValueError(f"no trigger is the beginning of {each.begin!r}")


def whole(structure: Grammar) -> list[Grammar]:
    """Return a grammar whose whole text is the structure."""
    return _named("structure", structure)


def composed(lark: str, grammars: Mapping[str, Grammar]) -> list[Grammar]:
    """Return the same for a Lark grammar that refers to others by `@name`."""
    inner = {"structure": {"lark_grammar": _OPTIONS + lark}, **grammars}
    return [each for name, grammar in inner.items() for each in _named(name, grammar)]


def placed(grammars: str, reasoning: ReasoningMarks | None, specials: Specials) -> str:
    """Return a grammar in which the structure is the whole text, or follows the reasoning.

    Args:
        grammars: the structure's grammars in JSON, separated by commas.
    """
    first = {"name": "text", "lark_grammar": _OPTIONS + _start(reasoning, specials)}
    return f'{{"grammars": [{json.dumps(first)}, {grammars}]}}'


def _start(reasoning: ReasoningMarks | None, specials: Specials) -> str:
    if reasoning is None:
        return "start: @structure\n"
    ends = [pieces(mark, specials) for mark in reasoning.ends]
    begins = [" ".join(pieces(mark, specials)) for mark in reasoning.begins]
    behind = "thought GAP? @structure"
    start = behind if reasoning.begun else f"(({' | '.join(begins)}) thought GAP?)? @structure"
    barred = [mark for mark in reasoning.barred if mark not in specials]
    free = ["/(.|\\n)*/", *(f"~/(.|\\n)*{slashes(re.escape(mark))}(.|\\n)*/" for mark in barred)]
    thought = until("thought", ends, "THOUGHT")
    return "\n".join([f"start: {start}", thought, f"THOUGHT: {' & '.join(free)}", _TERMINALS])


def until(rule: str, marks: Sequence[Sequence[str]], text: str = "TEXT") -> str:
    """Return a rule of free text, without control tokens, up to the first of `marks`."""
    control = [" ".join(mark) for mark in marks if any(p.startswith("<[") for p in mark)]
    spelled = [mark[0] for mark in marks if len(mark) == 1 and mark[0] not in control]
    options = [f"{text} ({' | '.join(control)})"] if control else []
    lines = []
    if spelled:
        options.append(f"{rule}_spelled")
        lines.append(f"{rule}_spelled[lazy]: {text} ({' | '.join(spelled)})")
    return "\n".join([f"{rule}: {' | '.join(options)}", *lines])


def pieces(text: str, specials: Specials) -> list[str]:
    """Return a text in Lark: strings, and control tokens by their ids."""
    if not text:
        return []
    parts = re.split(f"({any_of(specials)})", text)
    return [
        f"<[{specials[part]}]>" if part in specials else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    ]


def array(item: str, least: int, most: int | None) -> str:
    """Return an array of items in Lark."""
    if most == 0:
        return '"[" "]"'
    inner = f'{item} ("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
    return f'"[" {inner} "]"' if least else f'"[" ({inner})? "]"'


def _named(name: str, grammar: Grammar) -> list[Grammar]:
    """Return a grammar and its parts, with names that begin with its own."""
    if "parts" not in grammar:
        return [{**grammar, "name": name}]
    lark = re.sub(r"@(leaf_\d+)", rf"@{name}_\1", grammar["lark_grammar"])
    parts = [{**part, "name": f"{name}_{own}"} for own, part in grammar["parts"].items()]
    return [{"name": name, "lark_grammar": lark}, *parts]


def slashes(pattern: str) -> str:
    """Return a regex inside /…/."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)
