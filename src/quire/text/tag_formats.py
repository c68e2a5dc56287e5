"""xgrammar's `format` of a structural tag: parts of a text."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.text.composition import StructuralTag


class _Format(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """A part of a text. The names are xgrammar's."""


class ConstString(_Format, tag="const_string"):
    value: str


class Token(_Format, tag="token"):
    """A control token."""

    token: str


class JsonSchema(_Format, tag="json_schema"):
    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class Regex(_Format, tag="regex"):
    pattern: str


class Ebnf(_Format, tag="grammar"):
    grammar: str


class AnyText(_Format, tag="any_text"):
    excludes: list[str] = []


class Parts(_Format, tag="sequence"):
    elements: list[Format]


class Either(_Format, tag="or"):
    elements: list[Format]


class Optional(_Format, tag="optional"):
    content: Format


class Plus(_Format, tag="plus"):
    content: Format


class Star(_Format, tag="star"):
    content: Format


class Repeat(_Format, tag="repeat"):
    """`max` -1 sets no limit."""

    min: int
    max: int
    content: Format


class Tag(_Format, tag="tag"):
    begin: str | Token
    content: Format
    end: str | Token | list[str]

    @property
    def ends(self) -> list[str | Token]:
        """Return the texts that may end it; none if it has no end."""
        ends = self.end if isinstance(self.end, list) else [self.end]
        return [] if "" in ends else [*ends]


class TriggeredTags(_Format, tag="triggered_tags"):
    """Free text, in which each trigger begins one of the tags."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class SeparatedTags(_Format, tag="tags_with_separator"):
    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString | Token | JsonSchema | Regex | Ebnf | AnyText | Parts | Either | Optional | Plus
    | Star | Repeat | Tag | TriggeredTags | SeparatedTags
)  # fmt: skip


class FormattedTag(msgspec.Struct, forbid_unknown_fields=True):
    """A structural tag in the newer form."""

    format: Format
    type: Literal["structural_tag"] = "structural_tag"


def newer_form(tag: StructuralTag) -> FormattedTag:
    """Return a structural tag of the older form in the newer one."""
    tags = [Tag(each.begin, JsonSchema(each.schema), each.end) for each in tag.structures]
    if tag.otherwise is None:
        return FormattedTag(TriggeredTags(tag.triggers, tags))
    gap = Optional(Regex(r"[ \t\r\n]{1,8}"))
    calls = Parts([Plus(Parts([gap, Either([*tags])])), gap])
    return FormattedTag(Either([JsonSchema(tag.otherwise), calls]))
