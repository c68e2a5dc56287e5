"""Reasoning effort and budget, under the names of the model's chat template."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from starlette.requests import Request

from quire.core.sampling_params import UNLIMITED, SamplingParams
from quire.server.errors import invalid
from quire.server.notices import Notice, ignore, note
from quire.server.openai.protocol import ChatRequest
from quire.server.state import ServerState, server_state
from quire.server.tools.table import Parsers

_THINKING = re.compile(r"\{%[^%]*\b(?:if|and|or|not) thinking\b")


def limited(
    params: SamplingParams, budget: int | None, parsers: Parsers, *, calls: bool = False
) -> SamplingParams:
    """Return `params` with at most `budget` tokens of reasoning.

    Args:
        calls: answers may have tool calls.

    Raises:
        ApiError: 400, if no reasoning of this model is known.
    """
    if budget in (None, UNLIMITED):
        return params
    marks = parsers.thinking_marks(calls=calls)
    if marks is None:
        raise invalid(
            "this model has no reasoning that Quire knows, and so none to limit; leave "
            "thinking_token_budget out, or start the server with --reasoning-parser.",
            "thinking_token_budget",
        )
    return params.replace(thinking_token_budget=budget, thinking_marks=marks)


def template_kwargs(
    request: Request, body: ChatRequest, field: str = "reasoning_effort"
) -> dict[str, Any] | None:
    """Return the request's own, with its `reasoning_effort` under the name that the template knows.

    Any effort turns reasoning on, if the template has only that setting. An effort that it has no
    setting for is ignored and reported. A model that reasons in any case cannot follow "none".

    Args:
        field: what the client calls the effort.

    Raises:
        ApiError: 400 for "none", if the model would reason.
    """
    server = server_state(request)
    effort = body.reasoning_effort
    if effort is None:
        return body.chat_template_kwargs
    template = chat_template_of(server)
    switch = thinking_switch(template)
    found: dict[str, Any] = {}
    if effort == "none" and switch is not None:
        found = {switch: False}
    elif "reasoning_effort" in template:
        found = {"reasoning_effort": effort}
    elif switch is not None:
        found = {switch: True, **(body.chat_template_kwargs or {})}
        note(request, Notice(field, "The chat template can only turn reasoning on or off."))
    elif effort != "none":
        ignore(request, field, "The chat template has no setting for it.")
    elif server.parsers.reasoning is not None:
        raise invalid(f"{field} is none, but this model always reasons; leave it out.", field)
    return {**(body.chat_template_kwargs or {}), **found} or None


@lru_cache(maxsize=4)
def thinking_switch(template: str) -> str | None:
    """Return the variable that turns reasoning on and off; None if the template has none."""
    if "enable_thinking" in template:
        return "enable_thinking"
    return "thinking" if _THINKING.search(template) else None


def chat_template_of(server: ServerState) -> str:
    """Return the template's source; all sources if the model has several."""
    return server.options.chat_template or "\n".join(
        server.engine.tokenizer.chat_templates.values()
    )
