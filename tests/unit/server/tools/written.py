"""A call as a model writes it, in each format."""

from __future__ import annotations

import json
from typing import Any

from quire.server.tools.table import TOOL_PARSERS
from quire.text.markup import MARKUP


def written_call(name: str, function: str, arguments: dict[str, Any]) -> str:
    """A call in the format `name`; but for envelopes, arguments are numbers."""
    known = TOOL_PARSERS[name]
    if known.envelopes:
        each = known.envelopes[0]
        begin = each.begin.replace("{name}", function).replace("{index}", "0")
        return begin + json.dumps(arguments) + each.end
    if name in MARKUP:
        tags = MARKUP[name]
        begin, end = next(iter(tags.blocks.items()))
        values = [
            tags.before.replace("{key}", key).replace("{string}", "false") + f"{value}{tags.after}"
            for key, value in arguments.items()
        ]
        head = tags.head.replace("{name}", function)
        return begin + tags.lead + head + "".join(values) + tags.tail + end
    keyed = {sign: ",".join(f"{k}{sign}{v}" for k, v in arguments.items()) for sign in "=:"}
    return {
        "pythonic": f"[{function}({keyed['=']})]",
        "gemma4": f"<|tool_call>call:{function}{{{keyed[':']}}}<tool_call|>",
        "openai": f"<|channel|>commentary to=functions.{function}<|message|>"
        + json.dumps(arguments),
    }[name]
