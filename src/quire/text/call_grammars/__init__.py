"""Grammars of function calls in formats that do not write arguments as JSON.

A format is a Lark grammar of a whole text. Text is free, but everything that the parser in
`server/tools` would read as a call must be a call of one of the functions, with arguments that
follow its schema. Free text is the complement, so no spelling of a call is missed. JSON values
inside refer to grammars of their schemas by name.
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
    """The calls of a text, in a format of `server/tools` with the same name.

    Attributes:
        otherwise: a schema. If set, no text is free: it is JSON of this schema, or only calls.
    """

    format: Literal[
        "pythonic", "openai", "gemma4", "qwen3_coder", "seed_oss", "minimax_m2", "deepseek_v32",
        "glm45",
    ]  # fmt: skip
    functions: list[Function]
    otherwise: dict[str, Any] | bool | None = None
    type: Literal["function_calls"] = "function_calls"


def write_calls(calls: FunctionCalls, specials: Specials) -> Writing:
    """Return the grammar of a text with calls.

    Raises:
        ValueError: this format cannot follow a schema.
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
