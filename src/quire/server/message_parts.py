"""Forms of a chat that other servers accept too, in the form of OpenAI's API.

They mean the same, so clients that mix up the APIs are served.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from quire.server.notices import ignore
from quire.server.openai.custom import PARAMETER
from quire.server.openai.reasoning import chat_template_of, thinking_switch
from quire.server.state import server_state
from quire.server.tool_results import TOOL_ROLES, without_media

_OF_A_TOOL = ("type", "cache_control")
"""Fields of a tool that are no fields of its function."""
_CHOICES = {"any": "required", "auto": "auto", "none": "none", "required": "required"}
"""Anthropic's and Mistral's choices among tools → OpenAI's."""
_TEXTS = {"text": ("text", "input_text", "output_text"), "input_text": ("text", "input_text")}
"""The type of a text in an API → types that become it."""


def plain_parts(parts: Any, text_type: str = "text") -> None:
    """Give the parts of a message the form of one API, in place.

    Texts may be strings, or objects without a type or with the type of another API. An image's
    address may be a string. Everything else is unchanged.

    Args:
        parts: decoded JSON; unchanged if it is not a list.
        text_type: the type of a text in the API.
    """
    texts = _TEXTS[text_type]
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, str):
            parts[index] = {"type": text_type, "text": part}
        elif isinstance(part, dict):
            if isinstance(part.get("text"), str) and part.get("type", "text") in texts:
                part["type"] = text_type
            elif part.get("type") == "image_url" and isinstance(part.get("image_url"), str):
                part["image_url"] = {"url": part["image_url"]}


def move_thinking(message: dict[str, Any]) -> None:
    """Move `thinking` parts of an assistant's message to its `reasoning_content`, in place.

    A message that has its reasoning as text too only loses the parts.
    """
    parts = message.get("content")
    if message.get("role") != "assistant" or not isinstance(parts, list):
        return
    kept, thoughts = [], []
    for part in parts:
        thought = _thought(part)
        if thought is None:
            kept.append(part)
        else:
            thoughts.append(thought)
    if thoughts:
        message["content"] = kept or None
        if not (message.get("reasoning_content") or message.get("reasoning")):
            message["reasoning_content"] = "".join(thoughts)


def _thought(part: Any) -> str | None:
    """Return the text of a `thinking` part, which may be a list of texts; None for other parts."""
    if not isinstance(part, dict) or part.get("type") != "thinking":
        return None
    found = part.get("thinking")
    texts = [
        each.get("text") if isinstance(each, dict) else each
        for each in (found if isinstance(found, list) else [found])
    ]
    plain = [text for text in texts if isinstance(text, str)]
    return "".join(plain) if len(plain) == len(texts) else None


def plain_tools(body: dict[str, Any]) -> None:
    """Give the tools of a chat, and the choice among them, the form of OpenAI's chats, in place.

    They may have the form of the Responses API or of Anthropic's. The choice of a custom tool
    becomes that of a function.
    """
    given = body.get("tools")
    tools: list[Any] = given if isinstance(given, list) else []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            continue
        if "function" not in tool and isinstance(tool.get("name"), str):
            fields = {name: value for name, value in tool.items() if name not in _OF_A_TOOL}
            kind = tool.get("type", "function")
            if "input_schema" in fields:
                fields.setdefault("parameters", fields.pop("input_schema"))
                kind = "function"
            if kind in ("function", "custom"):
                tools[index] = tool = {"type": kind, kind: fields}
        tool.setdefault("type", "function")
        if isinstance(custom := tool.get("custom"), dict):
            flatten(custom.get("format"), "grammar")
    choice = _chosen(body.get("tool_choice"))
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
            inner = {name: value for name, value in choice.items() if name != "type"}
            choice = {"type": kind, "allowed_tools": inner}
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
            allowed["tools"] = [_chosen(tool) for tool in allowed["tools"]]
        if isinstance(kind, str) and kind in _CHOICES and len(choice) == 1:
            choice = kind
    if choice is not None:
        body["tool_choice"] = _CHOICES.get(choice, choice) if isinstance(choice, str) else choice


def _chosen(choice: Any) -> Any:
    """Return the choice of a tool in the form of OpenAI's chats; others as they are."""
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "tool", "custom"):
        return choice
    inner = choice.get("custom", choice)
    if "function" in choice or not isinstance(inner, dict) or type(inner.get("name")) is not str:
        return choice
    return {"type": "function", "function": {"name": inner["name"]}}


def plain_call(call: Any) -> None:
    """Make the call of a custom tool in a message the call of its function, in place."""
    custom = call.get("custom") if isinstance(call, dict) else None
    if isinstance(custom, dict) and call.get("type") == "custom":
        arguments = {PARAMETER: custom.get("input")}
        call |= {
            "type": "function",
            "function": {"name": custom.get("name"), "arguments": arguments},
        }
        del call["custom"]


def continue_prefix(body: dict[str, Any], messages: Any) -> None:
    """Make the mark of a last message that the answer continues a field of the chat, in place.

    The mark is Mistral's and DeepSeek's `prefix`, or Moonshot's `partial`.
    """
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return
    if body.get("continue_final_message") is not False:
        for name in ("prefix", "partial"):
            if last.get(name) is True:
                del last[name]
                body["continue_final_message"] = True


def usual_effort(request: Request, given: dict[str, Any], name: str, where: str) -> None:
    """Remove an effort that asks for what happens without it, in place."""
    if given.get(name) in ("auto", "default"):
        del given[name]
        ignore(request, where, "The chat template decides, as without it.")


def plain_budget(request: Request, body: dict[str, Any]) -> None:
    """Make OpenRouter's `reasoning.max_tokens` and Anthropic's `thinking.budget_tokens` of a chat
    its budget of reasoning, and Ollama's levels of `think` its effort, in place."""
    for name, inner in (("reasoning", "max_tokens"), ("thinking", "budget_tokens")):
        given = body.get(name)
        if not isinstance(given, dict) or type(budget := given.get(inner)) is not int:
            continue
        if body.get("thinking_token_budget") not in (None, budget):
            continue
        if server_state(request).parsers.reasoning is None:
            ignore(request, f"{name}.{inner}", "The answer has no reasoning to limit.")
        else:
            body["thinking_token_budget"] = budget
        del given[inner]
        if not given:
            del body[name]
    level, effort = body.get("think"), body.get("reasoning_effort")
    if level in ("low", "medium", "high") and effort in (None, level):
        body["reasoning_effort"] = body.pop("think")


def plain_reasoning(body: dict[str, Any]) -> None:
    """Give OpenRouter's `reasoning` of a chat the fields of OpenAI's and vLLM's API, in place."""
    given = body.get("reasoning")
    if not isinstance(given, dict) or not given or given.keys() - {"effort", "enabled", "exclude"}:
        return
    effort, enabled, exclude = map(given.get, ("effort", "enabled", "exclude"))
    if any(each is not None and type(each) is not bool for each in (enabled, exclude)):
        return
    if enabled is not None:
        effort = (effort or "medium") if enabled else "none"
    wanted: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if exclude:
        wanted["include_reasoning"] = False
    if all(body.get(name) in (None, value) for name, value in wanted.items()):
        del body["reasoning"]
        body.update(wanted)


def plain_thinking(request: Request, body: dict[str, Any]) -> None:
    """Make Qwen's `enable_thinking`, Ollama's `think`, and DeepSeek's and GLM's `thinking` a
    variable of the chat template, in place.

    They stay in the body, and are refused, if another field contradicts them, or if the template
    has no switch and the model always reasons.
    """
    for name in ("enable_thinking", "think", "thinking"):
        wanted = _switched(body.get(name)) if name == "thinking" else body.get(name)
        kwargs, effort = body.get("chat_template_kwargs") or {}, body.get("reasoning_effort")
        if type(wanted) is not bool or not isinstance(kwargs, dict):
            continue
        server = server_state(request)
        switch = thinking_switch(chat_template_of(server))
        others = [] if switch is None else [kwargs.get(switch, wanted)]
        others += [] if effort is None else [effort != "none"]
        if any(other is not wanted for other in others):
            continue
        thinks = server.parsers.reasoning is not None
        if switch is not None:
            body["chat_template_kwargs"] = {**kwargs, switch: wanted}
        elif wanted and not thinks:
            ignore(request, name, "This model does not think before it answers.")
        elif thinks and not wanted:
            continue
        del body[name]


def _switched(thinking: Any) -> bool | None:
    """Return what `{"type": "enabled"}` or `{"type": "disabled"}` means; None for others."""
    if not isinstance(thinking, dict) or thinking.keys() != {"type"}:
        return None
    return {"enabled": True, "disabled": False}.get(str(thinking["type"]))


def mend_response(request: Request, body: Any) -> None:
    """Give the schema and the choice of a tool in a response's decoded JSON the form of the
    Responses API, in place, if they have that of chats."""
    if not isinstance(body, dict):
        return
    if isinstance(text := body.get("text"), dict):
        flatten(text.get("format"), "json_schema")
    choice = body.get("tool_choice")
    for kind in ("function", "custom"):
        flatten(choice, kind)
    if choice == "any":
        body["tool_choice"] = "required"
    if isinstance(reasoning := body.get("reasoning"), dict):
        usual_effort(request, reasoning, "effort", "reasoning.effort")


def flatten(given: Any, kind: str) -> None:
    """Move the fields of the inner object that a chat names like its type to `given`, in place."""
    inner = given.get(kind) if isinstance(given, dict) else None
    if isinstance(inner, dict) and given.keys() == {"type", kind} and given["type"] == kind:
        del given[kind]
        given.update(inner | {"type": kind})


def _is_result(content: Any) -> bool:
    """Return whether a tool's content is a JSON value, instead of a text or parts."""
    return isinstance(content, int | float) or (
        isinstance(content, dict) and not {"type", "text"} & content.keys()
    )


def mend_chat(request: Request, body: Any) -> None:
    """Give a chat's decoded JSON the form of OpenAI's API, in place.

    Tools' results lose what is not text; see `tool_results.without_media`.
    """
    if not isinstance(body, dict):
        return
    plain_tools(body)
    usual_effort(request, body, "reasoning_effort", "reasoning_effort")
    plain_budget(request, body)
    plain_reasoning(body)
    plain_thinking(request, body)
    if "random_seed" in body:  # Mistral's name
        body.setdefault("seed", body.pop("random_seed"))
    if isinstance(wanted := body.get("response_format"), str):
        body["response_format"] = {"type": wanted}
    messages = body.get("messages")
    continue_prefix(body, messages)
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            calls, content = message.get("tool_calls"), message.get("content")
            for call in calls if isinstance(calls, list) else ():
                plain_call(call)
            if message.get("role") in TOOL_ROLES and _is_result(content):
                message["content"] = json.dumps(content, ensure_ascii=False)
            elif isinstance(content, dict):
                message["content"] = [content]
            move_thinking(message)
            plain_parts(message.get("content"))
            if message.get("role") in TOOL_ROLES:
                where = f"messages[{index}].content"
                without_media(request, message.get("content"), "text", where)
