"""What a request's text has to be. Names and meanings are vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.typed import check_types

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

NOT_FOLLOWED = "The output's structure cannot be followed: "
"""Begins the reason why a request ends whose structure turns out to be too much: it is the
request's fault, not the engine's."""


class ReasoningMarks(msgspec.Struct, frozen=True, array_like=True):
    """Between which texts a model reasons before it answers.

    Attributes:
        begun: the prompt has begun the reasoning.
        barred: texts that the reasoning does not hold, for they would end it.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    begun: bool = False
    barred: tuple[str, ...] = ()


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Exactly one of `KINDS`, and how to space JSON.

    Invalid values raise `InvalidRequestError`; whether a schema, an expression or a grammar can be
    served, `text.grammar` tells.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, or its text, as which it is kept. Properties come in the schema's order."""
    regex: str | None = None
    """All of the text matches it; without look-around or back-references."""
    choice: list[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """In Lark's syntax, as llguidance reads it, or in llama.cpp's GBNF."""
    json_object: bool | None = None
    """The text is any JSON object."""
    structural_tag: str | dict[str, Any] | None = None
    """The text is free but for structures between tags: `{"structures": [{"begin", "schema",
    "end"}, …], "triggers": […]}`, or its text, as which it is kept."""
    disable_any_whitespace: bool = False
    """No white space between JSON's tokens."""
    whitespace_pattern: str | None = None
    """A regular expression of the white space allowed between JSON's tokens. Unset: a space, or
    line breaks and an indentation, so that no model can go on with white space for ever."""
    disable_additional_properties: bool = True
    """Objects whose schema names properties have no others, unless it has `additionalProperties`.
    False: others may be there wherever the schema does not forbid them, as JSON Schema says."""
    reasoning: ReasoningMarks | None = None
    """The structure begins behind the reasoning, where there is any."""
    field: str | None = None
    """What errors call it; unset, by its kind."""

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
            raise _error(f"white space is JSON's to set; this is a {given[0]}.")

    def _write_json(self) -> None:
        """Keep JSON as text: messages between processes hold no integers beyond 64 bits."""
        for name in (*KINDS, "whitespace_pattern"):
            value = getattr(self, name)
            try:
                written = msgspec.json.encode(value)
            except (RecursionError, TypeError, ValueError) as error:
                raise _error(f"structured_outputs.{name} is no JSON: {error}.") from None
            if isinstance(value, dict):
                msgspec.structs.force_setattr(self, name, written.decode())

    @property
    def given(self) -> list[str]:
        """Which of `KINDS` is set: one."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @property
    def kind(self) -> str:
        return self.given[0]


class WrittenStructure(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A structure's grammars as llguidance reads them, in JSON, with commas between them.

    Attributes:
        plain: without exponents in numbers; None if that is the same. It serves where the other
            is too much.
    """

    grammars: str
    plain: str | None = None


def _error(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, param="structured_outputs")
