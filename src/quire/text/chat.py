"""Chat messages to token ids, through the model's chat template.

The result of the template is tokenized as one text, as in Hugging Face's library. Special tokens in
users' texts are ordinary text (see `text.guard`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quire.core.errors import ConfigError, ContextLengthError, InvalidRequestError
from quire.text.guard import Guard, RenderedChat, controls
from quire.text.tokenizers.tokenizer import Tokenizer

RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"chat_template", "raise_exception", "strftime_now", "tokenize"}
)
"""Variables of a template that only Quire sets."""
DEVELOPER = "developer"
"""OpenAI's newer name of the role system."""
_LISTS = re.compile(r"for\s+\w+\s+in\s+\w+(?:\.content\b|\[['\"]content['\"]\])")
"""Of a template that reads content as a list of parts."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first or the second."""
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def own_variables(tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names in `chat_template_kwargs` that only Quire sets."""
    return sorted(key for key in kwargs if key in RESERVED or key in tokenizer.special_tokens)


def render_chat(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: list[dict[str, Any]] | None = None,
    documents: list[dict[str, Any]] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> RenderedChat:
    """Return the prompt of `messages`; developer messages may count as system.

    Args:
        chat_template: the name of one of the tokenizer's templates, or a template's source; the
            tokenizer's own template if None ("tool_use", if there is one and tools are given).
        continue_final_message: leave the last message open, so that the model continues it.
        kwargs: further variables for the template (`chat_template_kwargs`).

    Raises:
        ConfigError: the model has no chat template.
        InvalidRequestError: the messages are malformed, `kwargs` overrides a variable of
            Quire's, or the template fails (see `text.template`).
    """
    from quire.text.template import render_template  # Jinja, only in the process that renders

    source = select_template(tokenizer, chat_template, with_tools=bool(tools))
    extra = kwargs or {}
    if taken := own_variables(tokenizer, extra):
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(taken)}.",
            fix="Leave them out.",
            param="chat_template_kwargs",
        )
    if continue_final_message and add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other.",
            fix="Set add_generation_prompt to false.",
            param="continue_final_message",
        )
    knows_developers = DEVELOPER in source
    messages = [_normalized(message, knows_developers) for message in messages]
    guard = Guard(tokenizer.special_token_strings)
    end = f"{guard.mark}end "
    prepared = _prepared(messages, guard, source, end if continue_final_message else None)
    text = render_template(
        source,
        {
            **tokenizer.special_tokens,
            **guard.protect(extra),
            "messages": prepared,
            "tools": guard.protect(tools) if tools else None,
            "documents": guard.protect(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        },
    )
    if continue_final_message:
        text = _cut_at_end(text, end)
    return guard.lift(text)


def _prepared(
    messages: list[dict[str, Any]], guard: Guard, source: str, end: str | None
) -> list[dict[str, Any]]:
    """Return the messages for a template; `end` marks the end of the last one."""
    listed = _LISTS.search(source) is not None and "image" in source
    prepared = [_prepare(each, guard, index, listed) for index, each in enumerate(messages)]
    if end is not None:
        _mark_end(prepared, end)
    return [_as_parts(message) for message in prepared] if listed else prepared


def _normalized(message: dict[str, Any], knows_developers: bool) -> dict[str, Any]:
    """Return a message without its nulls, and with its reasoning under both usual names.

    Templates test whether a field is there, and some write a null as "None". gpt-oss's refuses
    `thinking` where a message has a text and calls tools. A developer counts as system if the
    template knows no developers.
    """
    found = {key: value for key, value in message.items() if value is not None}
    if found.get("role") == DEVELOPER and not knows_developers:
        found["role"] = "system"
    reasoning = next((found[name] for name in _REASONING if name in found), None)
    if reasoning is None:
        return found
    more = {} if found.get("content") and found.get("tool_calls") else {"thinking": reasoning}
    return {**more, **found, "reasoning_content": reasoning}


def chat_to_token_ids(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    max_tokens: int | None = None,
    contexts: int = 1,
    *,
    add_special_tokens: bool = False,
    **options: Any,
) -> list[int]:
    """Return the token ids of `render_chat(tokenizer, messages, **options)`.

    Special tokens that the template writes are control tokens; those that a message holds are
    plain text. With `add_special_tokens`, those that the model wants around every text are added;
    templates usually write them.

    Raises:
        InvalidRequestError: as `render_chat`, or the text has `contexts` times `max_tokens` or
            more in any case.
    """
    chat = render_chat(tokenizer, messages, **options)
    if max_tokens is not None:
        least = tokenizer.least_tokens(chat.text)
        if least >= max_tokens * contexts:
            raise ContextLengthError(least, max_tokens, counted=False)
    token_ids = encode_chat(tokenizer, chat)
    return _surrounded(tokenizer, token_ids) if add_special_tokens else token_ids


def _surrounded(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """Return the tokens between those that the tokenizer puts around every text."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a")
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return [*whole[:start], *token_ids, *whole[start + len(plain) :]]
    return token_ids


def encode_chat(tokenizer: Tokenizer, chat: RenderedChat) -> list[int]:
    """Return the token ids of a rendered chat."""
    if not chat.breaks:
        return tokenizer.encode(chat.text, add_special_tokens=False)
    return tokenizer.encode_with_controls(
        chat.text, controls(chat, tokenizer.special_token_strings)
    )


def select_template(
    tokenizer: Tokenizer, chat_template: str | None = None, *, with_tools: bool = False
) -> str:
    """Return the source of the template to use.

    Raises:
        ConfigError: none was given and the model has none.
    """
    named = tokenizer.chat_templates
    if chat_template is not None:
        if chat_template not in named and "{" not in chat_template:
            raise ConfigError(
                f"The model has no chat template called {chat_template!r}.",
                fix=f"It has {', '.join(sorted(named)) or 'none'}.",
                param="--chat-template",
            )
        return named.get(chat_template, chat_template)
    if with_tools and "tool_use" in named:
        return named["tool_use"]
    if "default" in named:
        return named["default"]
    if len(named) == 1:
        return next(iter(named.values()))
    raise ConfigError(
        "The model has no chat template." if not named else "The model has no default template.",
        fix="Give one with --chat-template FILE, or use plain completions.",
        param="--chat-template",
    )


def _prepare(message: dict[str, Any], guard: Guard, index: int, listed: bool) -> dict[str, Any]:
    """Return a message for the template: everything protected, and content flattened to text.

    With `listed`, content with images stays a list of parts.
    """
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequestError(
            f"messages[{index}].role must be a short word such as user, not {role!r}.",
            fix="Use system, user, assistant or tool.",
            param="messages",
        )
    content = message.get("content")
    if isinstance(content, list):
        images = any(isinstance(part, dict) and part.get("type") == "image" for part in content)
        if images and not listed:
            raise InvalidRequestError(
                f"messages[{index}].content has an image; the chat template has no place for it.",
                fix="Use a model that reads images, or its own template.",
                param="messages",
            )
        parts = [{"type": "text", "text": p} if isinstance(p, str) else p for p in content]
        message = {**message, "content": parts if images else _flatten(content, index)}
    return {key: value if key == "role" else guard.protect(value) for key, value in message.items()}


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its text as a list of one part, as templates with images read it."""
    content = message.get("content")
    if not isinstance(content, str) or not content:
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _flatten(parts: list[Any], index: int) -> str:
    texts = []
    for part in parts:
        match part:
            case str():
                texts.append(part)
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise InvalidRequestError(
                    f"messages[{index}].content holds a part that is not text.",
                    fix="This model reads text only.",
                    param="messages",
                )
    return "\n".join(texts)


def _mark_end(messages: list[dict[str, Any]], end: str) -> None:
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise InvalidRequestError(
            "continue_final_message needs a last message with content.",
            fix="Give the text to continue.",
            param="messages",
        )
    messages[-1]["content"] = content + end


def _cut_at_end(text: str, end: str) -> str:
    """Return `text` up to the end of the last message; trimmed if the template trims messages."""
    at = text.rfind(end.rstrip())
    if at < 0:
        raise InvalidRequestError(
            "The chat template leaves out the end of the last message.",
            fix="Unset continue_final_message.",
            param="continue_final_message",
        )
    return text[:at] if text.startswith(end, at) else text[:at].rstrip()
