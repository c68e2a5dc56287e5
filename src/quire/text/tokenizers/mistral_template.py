"""The chat template of folders that have only Mistral's tekken.json.

Mistral's library writes prompts by the file's version:

| version | tools stand before | a call | a result |
|---|---|---|---|
| v7 | the last user | [TOOL_CALLS] and a list of JSON | id, [TOOL_CONTENT], text |
| v11 | the last user | [TOOL_CALLS] name [CALL_ID] id [ARGS] JSON | id, [TOOL_CONTENT], text |
| v13 | the first user | [TOOL_CALLS] name [ARGS] JSON | text, in the order of the calls |

It joins neighbours of one role by an empty line, and puts one image before one text. v3 embeds
results as JSON and is not here.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

_VERSIONS = {"v7": 7, "v11": 11, "v13": 13}
_SOURCE = Path(__file__).with_name("mistral.jinja")


def mistral_template(version: str, special: Container[str]) -> str | None:
    """Return the chat template of a tekken.json; None if Quire does not know its rules.

    Args:
        special: its special tokens, all of which the template needs.
    """
    number, source = _VERSIONS.get(version), _SOURCE.read_text(encoding="utf-8").rstrip("\n")
    wanted = {*re.findall(r"\[/?[A-Z_]{4,}\]", source)}
    unused = {7: {"[CALL_ID]", "[ARGS]"}, 13: {"[CALL_ID]", "[TOOL_CONTENT]"}}
    if number is None or any(token not in special for token in wanted - unused.get(number, set())):
        return None
    return f"{{%- set version = {number} %}}{source}"
