"""Custom tools as functions, and their input from the arguments that the model writes.

Models call functions. So a custom tool becomes a function with one text, `{"input": "…"}`, and that
text is the input. Arguments in another form are the input as they are.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.http.json_text import well_formed
from quire.server.openai.tool_types import CustomDefinition, FunctionDefinition, GrammarInput
from quire.server.tools.stream import Emit, Input, Wait, peek, rest, space, starts
from quire.text.lark_regex import regex_of

PARAMETER = "input"
_BEGIN = ("{", f'"{PARAMETER}"', ":", '"')
_PIECE = re.compile(
    r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r'|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]'
)
_UNFINISHED = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
"""The beginning of an escape, or of a pair of them."""


ONLY_SHOWN = (
    "The model sees the grammar. It has no regular expression, so it is enforced only if the tool "
    "must be called."
)


class Custom(NamedTuple):
    """A custom tool that the model sees as a function, and the request's field with it."""

    tool: CustomDefinition
    place: str

    @property
    def is_loose(self) -> bool:
        """Return whether the tool has a grammar that no regular expression describes."""
        return self.tool.grammar is not None and _regex(self.tool.grammar) is None

    @property
    def structure(self) -> StructuredOutputsParams | None:
        """Return the structure of the input, without an object around it."""
        if (grammar := self.tool.grammar) is None:
            return None
        kind = "regex" if grammar.syntax == "regex" else "grammar"
        wanted: dict[str, Any] = {kind: grammar.definition}
        return StructuredOutputsParams(**wanted, field=f"{self.place}.format.definition")


def as_function(tool: CustomDefinition) -> FunctionDefinition:
    """Return the function that the model sees in place of a tool."""
    if (grammar := tool.grammar) is None:
        return FunctionDefinition(tool.name, tool.description, _parameters(None))
    syntax = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
    note = f"The input is a text of this {syntax}:\n{grammar.definition}"
    description = f"{tool.description}\n\n{note}" if tool.description else note
    if (regex := _regex(grammar)) is None:
        return FunctionDefinition(tool.name, description, _parameters(None))
    return FunctionDefinition(tool.name, description, _parameters(f"^(?:{regex})$"), strict=True)


def _regex(grammar: GrammarInput) -> str | None:
    """Return a regular expression for a grammar's texts; None if there is none."""
    return grammar.definition if grammar.syntax == "regex" else _of_lark(grammar.definition)


_of_lark = lru_cache(maxsize=64)(regex_of)


def _parameters(pattern: str | None) -> dict[str, Any]:
    """Return the schema of the arguments; `pattern` is a regular expression of the whole input."""
    text = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {
        "type": "object",
        "properties": {PARAMETER: text},
        "required": [PARAMETER],
        "additionalProperties": False,
    }


class InputReader:
    """Reads the input, piece by piece.

    Args:
        plain: the model writes the input itself, without an object around it.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._source = Input()
        self._new: list[str] = []
        self._reading = (rest if plain else _read)(self._source, self._new.append)

    def push(self, text: str) -> str:
        """Return what `text` adds to the input."""
        self._source.add(text)
        next(self._reading, None)
        return self._take()

    def end(self) -> str:
        """Return the text held back, at the end; nothing if the object never began."""
        self._source.ended = True
        for _ in self._reading:
            pass
        return self._take()

    def _take(self) -> str:
        text = "".join(self._new)
        self._new.clear()
        return well_formed(text)


def _read(source: Input, emit: Emit) -> Wait:
    """Read the object's text; any other text is the input as it is."""
    source.hold()
    for token in _BEGIN:
        yield from space(source)
        if not (yield from starts(source, token)):
            if not source.ended:
                emit(source.release())
                yield from rest(source, emit)
            return
    source.release()
    while (char := (yield from peek(source))) and char != '"':
        while source.is_only(_UNFINISHED) and not source.ended:
            yield
        piece = source.take_match(_PIECE) or source.take(1)  # a backslash that escapes nothing
        emit(json.loads(f'"{piece}"') if len(piece) > 1 and piece[0] == "\\" else piece)
