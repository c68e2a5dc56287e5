"""Options for structured outputs. Names and meanings are vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import check_types

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class ReasoningMarks(msgspec.Struct, frozen=True, array_like=True):
    """The texts around a model's reasoning before its answer.

    Attributes:
        begun: the prompt has begun the reasoning.
        barred: texts that the reasoning must not contain, because they would end it.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    begun: bool = False
    barred: tuple[str, ...] = ()


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Exactly one of `KINDS`, and the white space of JSON.

    Invalid values raise `InvalidRequestError`. `text.grammar` checks the structure itself.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema or its text; stored as text. Properties come in the schema's order."""
    regex: str | None = None
    """An expression that the whole text matches; without look-around and back-references."""
    choice: list[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """A grammar in llguidance's Lark syntax or in llama.cpp's GBNF."""
    json_object: bool | None = None
    """The text is any JSON object."""
    structural_tag: str | dict[str, Any] | None = None
    """Free text with structures between tags: `{"structures": [{"begin", "schema", "end"}, …],
    "triggers": […]}`, or its JSON text; stored as text."""
    disable_any_whitespace: bool = False
    """No white space between JSON's tokens."""
    whitespace_pattern: str | None = None
    """A regular expression for the white space between JSON's tokens. Default: a space, or line
    breaks with indentation, so that a model cannot write white space forever."""
    disable_additional_properties: bool = True
    """Objects whose schema lists properties have no others, unless it has `additionalProperties`.
    False: others are allowed unless the schema forbids them, as in JSON Schema."""
    reasoning: ReasoningMarks | None = None
    """The structure begins after the reasoning, if there is any."""
    field: str | None = None
    """The field's name in errors; None means by its kind."""

    def __post_init__(self) -> None:
        check_types(self)
        self._write_json()
        if self.json_object is False:
            raise _error("structured_outputs.json_object is false; leave it out.")
        given = self.given
        if len(given) != 1:
            have = f"has {' and '.join(given)}" if given else "is empty"
            raise _error(f"structured_outputs {have}; give one of {', '.join(KINDS)}.")
        if self.choice is not None and not self.choice:
            raise _error("structured_outputs.choice has no strings.")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise _error("disable_any_whitespace and whitespace_pattern exclude each other.")
        of_json = given[0] in ("json", "json_object", "structural_tag")
        if not of_json and (self.disable_any_whitespace or self.whitespace_pattern is not None):
            raise _error(f"White space options need JSON; this is a {given[0]}.")

    def _write_json(self) -> None:
        """Store JSON as text: messages between processes cannot hold integers beyond 64 bits."""
        for name in (*KINDS, "whitespace_pattern"):
            value = getattr(self, name)
            try:
                written = msgspec.json.encode(value)
            except (RecursionError, TypeError, ValueError) as error:
                raise _error(f"structured_outputs.{name} is not valid JSON: {error}.") from None
            if isinstance(value, dict):
                msgspec.structs.force_setattr(self, name, written.decode())

    @property
    def given(self) -> list[str]:
        """Return which of `KINDS` are set; after validation, one."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @property
    def kind(self) -> str:
        return self.given[0]


class WrittenStructure(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A structure's grammars for llguidance: JSON documents with commas between them.

    Attributes:
        plain: the same without exponents in numbers, as a fallback if `grammars` is too large;
            None if it is equal.
    """

    grammars: str
    plain: str | None = None


def _error(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, param="structured_outputs")


class ThinkingMarks(msgspec.Struct, frozen=True, array_like=True):
    """The texts around a model's reasoning before its answer.

    Attributes:
        begins: the reasoning begins after one of them, at the start of the answer.
        ends: it ends with the first of these that appears.
        forced: the text that ends it at the limit; if empty, the first of `ends`.
        begun: the prompt has begun the reasoning; the input processor sets it.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    forced: str = ""
    begun: bool = False
