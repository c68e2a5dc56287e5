"""How much a model is to reason, in the words of its chat template."""

from __future__ import annotations

from typing import Any

from quire.server.errors import invalid
from quire.server.openai.protocol import ChatRequest
from quire.server.state import ServerState


def template_kwargs(body: ChatRequest, server: ServerState) -> dict[str, Any] | None:
    """Those of the request, and its `reasoning_effort` under the name that the template knows.

    Raises:
        ApiError: 400 where it knows none.
    """
    effort = body.reasoning_effort
    if effort is None:
        return body.chat_template_kwargs
    template = server.chat_template or "\n".join(server.engine.tokenizer.chat_templates.values())
    if effort == "none" and "enable_thinking" in template:
        found: dict[str, Any] = {"enable_thinking": False}
    elif "reasoning_effort" in template:
        found = {"reasoning_effort": effort}
    elif effort == "none" and server.parsers.reasoning is None:
        found = {}
    else:
        raise invalid(
            f"this model's chat template knows no reasoning_effort {effort!r}; leave it out.",
            "reasoning_effort",
        )
    return {**(body.chat_template_kwargs or {}), **found} or None
