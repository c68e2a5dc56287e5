"""Calls of functions as models write them that do not write JSON around the arguments.

Each format is a grammar in Lark of a whole text: free, but that whatever its reader in
`server/tools` would take for a call is one of the functions, with arguments of its schema. Free
text is the complement of that, so that no spelling of a call slips through. The arguments'
schemas are grammars of their own, by name, wherever a value is written in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from quire.text.call_grammars.gemma import gemma4
from quire.text.call_grammars.harmony import harmony
from quire.text.call_grammars.markup import markup
from quire.text.call_grammars.pythonic import pythonic
from quire.text.call_grammars.writing import Function, Writing
from quire.text.composition import Specials
from quire.text.markup import MARKUP


class FunctionCalls(msgspec.Struct, forbid_unknown_fields=True):
    """The calls of a text, in a format that `server/tools` reads under the same name.

    Attributes:
        otherwise: a schema. If it is there, nothing is free: the text is JSON of this schema, or
            calls and nothing else.
    """

    format: Literal[
        "pythonic", "openai", "gemma4", "qwen3_coder", "seed_oss", "minimax_m2", "deepseek_v32",
        "glm45",
    ]  # fmt: skip
    functions: list[Function]
    otherwise: dict[str, Any] | bool | None = None
    type: Literal["function_calls"] = "function_calls"


def write_calls(calls: FunctionCalls, specials: Specials) -> Writing:
    """The grammar of a text with calls.

    Raises:
        ValueError: a schema says what arguments in this format are not held to.
    """
    writing = Writing(specials, otherwise=calls.otherwise)
    _FORMATS[calls.format](writing, calls.functions)
    return writing


_FORMATS: dict[str, Callable[[Writing, Sequence[Function]], None]] = {
    "pythonic": pythonic,
    "openai": harmony,
    "gemma4": gemma4,
    **{name: partial(markup, tags=tags) for name, tags in MARKUP.items()},
}
