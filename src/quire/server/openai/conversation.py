"""A chat's messages and options as the prompt that the engine renders."""

from __future__ import annotations

from quire.engine.tokenizer_worker import ChatPrompt
from quire.server.errors import invalid
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.tools import template_message, tool_definitions


def chat_prompt(body: ChatRequest, template: str | None) -> ChatPrompt:
    """The conversation, for the engine to render.

    Raises:
        ApiError: 400 where it is empty, or its options contradict each other.
    """
    if not body.messages:
        raise invalid("messages is empty.", "messages")
    add_prompt, resume = body.add_generation_prompt, bool(body.continue_final_message)
    if add_prompt and resume:
        raise invalid(
            "add_generation_prompt and continue_final_message cannot both be true.",
            "continue_final_message",
        )
    if resume and body.messages[-1].role != "assistant":
        raise invalid(
            "continue_final_message needs the last message to be the assistant's.",
            "continue_final_message",
        )
    return ChatPrompt(
        [template_message(message, index) for index, message in enumerate(body.messages)],
        chat_template=template,
        add_generation_prompt=not resume if add_prompt is None else add_prompt,
        continue_final_message=resume,
        kwargs=body.chat_template_kwargs,
        tools=tool_definitions(body),
    )
