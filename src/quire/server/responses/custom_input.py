"""Read the input of a custom tool from the arguments that the model writes.

Models call functions. So a custom tool becomes a function with one text, `{"input": "…"}`, and that
text is the input. Arguments in another form are the input as they are.
"""

from __future__ import annotations

import json
import re
from typing import Any

from quire.server.http.json_text import well_formed

PARAMETER = "input"
_BEGIN = ("{", f'"{PARAMETER}"', ":", '"')
_SPACE = " \t\r\n"
_PIECE = re.compile(
    r'[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r'|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]'
)
_UNFINISHED = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
"""The beginning of an escape, or of a pair of them."""


def parameters(pattern: str | None) -> dict[str, Any]:
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
        self._held = ""
        """An incomplete beginning of the object, or of an escape."""
        self._plain = plain
        self._begun = False
        self._ended = False

    def push(self, text: str) -> str:
        """Return what `text` adds to the input."""
        if self._ended:
            return ""
        text, self._held = self._held + text, ""
        if not self._plain and not self._begun:
            return self._begin(text)
        return text if self._plain else self._decode(text)

    def end(self) -> str:
        """Return the text held back, at the end; nothing if the object never began."""
        held, self._held = self._held, ""
        return well_formed(held) if self._begun and not self._ended else ""

    def _begin(self, text: str) -> str:
        """Look for the object's beginning."""
        position = 0
        for token in _BEGIN:
            while position < len(text) and text[position] in _SPACE:
                position += 1
            found = text[position : position + len(token)]
            if not token.startswith(found):
                self._plain = True
                return text
            if found != token:
                self._held = text
                return ""
            position += len(token)
        self._begun = True
        return self._decode(text[position:])

    def _decode(self, text: str) -> str:
        """Return the decoded text of a JSON string, up to its end."""
        found: list[str] = []
        position = 0
        while position < len(text):
            if text[position] == '"':
                self._ended = True
                break
            if (rest := _UNFINISHED.fullmatch(text, position)) is not None:
                self._held = rest[0]
                break
            piece = _PIECE.match(text, position)
            if piece is None:  # a backslash that escapes nothing
                found.append(text[position])
                position += 1
                continue
            written = piece[0]
            found.append(json.loads(f'"{written}"') if written[0] == "\\" else written)
            position = piece.end()
        return well_formed("".join(found))
