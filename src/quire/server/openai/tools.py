"""Tools in a chat: what the request asks for, and what is read of the answer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import ReasoningMarks
from quire.server.errors import invalid
from quire.server.json_text import read_object
from quire.server.openai.calls import structure_of_calls
from quire.server.openai.protocol import (
    AssistantMessage,
    ChatMessage,
    ChatRequest,
    ChosenTool,
    Delta,
    FunctionCall,
    ToolCall,
    ToolDefinition,
)
from quire.server.tools import deltas
from quire.server.tools.alignment import TokenSpans
from quire.server.tools.output import ValueTypes
from quire.server.tools.table import OutputParser, Parsers
from quire.text.json_types import allowed_types
from quire.text.reasoning import prompt_reasoning
from quire.text.tokenizer import Tokenizer

ID_LENGTH = 24


@dataclass(frozen=True, slots=True)
class Reading:
    """How a request's answers are to be read.

    Attributes:
        calls: look for tool calls, in the model's own format.
        required: they are a JSON list, and nothing else.
        named: the function whose arguments the answer is.
        parallel: an answer may have several.
        reasoning: show it.
        strict: the arguments of calls are held to their schemas, although they need not come.
        types: of the functions' parameters.
        structured: the text is held to a structure, which begins behind the reasoning.
    """

    parsers: Parsers
    calls: bool = False
    required: bool = False
    named: str | None = None
    parallel: bool = True
    reasoning: bool = True
    strict: bool = False
    structured: bool = False
    types: ValueTypes | None = None

    @property
    def needed(self) -> bool:
        """Whether there is anything to read; else all of the text is the content."""
        if self.required or self.named is not None:
            return True
        if self.structured:
            return self.reasoning_marks is not None
        return self.calls or self.parsers.reads_all

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """What stands around the reasoning, where that is so simple."""
        known = self.parsers.reasoning
        return ReasoningMarks(known.begins, known.ends) if known and known.begins else None

    def new_call_id(self) -> str:
        """For a call, as long as the model's template wants it."""
        known = self.parsers.tools
        if known is not None and known.id_length is not None:
            return secrets.token_hex(known.id_length)[: known.id_length]
        return f"call_{secrets.token_hex(ID_LENGTH // 2)}"

    def parser(self, tokenizer: Tokenizer, output: RequestOutput) -> OutputParser:
        """For one choice."""
        inside = False
        if self.parsers.reasoning is not None:
            begins, ends = self.parsers.reasoning.begins, self.parsers.reasoning.ends
            said = prompt_reasoning(tokenizer, output.prompt_token_ids, begins, ends)
            inside = said is True
        return OutputParser(
            self.parsers,
            calls=self.calls,
            inside=inside,
            required=self.required,
            named=self.named,
            types=self.types,
        )


def read_tools(body: ChatRequest, parsers: Parsers) -> Reading:
    """What `tools` and `tool_choice` ask for.

    Raises:
        ApiError: 400, where they contradict each other, or the model's calls cannot be read.
    """
    show = body.include_reasoning is not False
    structured = _has_structure(body)
    if not body.tools:
        if body.tool_choice not in (None, "none"):
            raise invalid("tool_choice needs tools.", "tool_choice")
        return Reading(parsers, reasoning=show, structured=structured)
    names = [tool.function.name for tool in body.tools]
    if len(set(names)) < len(names):
        raise invalid("tools has two functions of one name.", "tools")
    choice = body.tool_choice or "auto"
    if choice == "none":
        return Reading(parsers, reasoning=show, structured=structured)
    if structured:
        raise invalid(
            "a structure of the text and tools exclude each other, unless tool_choice is none.",
            "tools",
        )
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ChosenTool):
        if choice.function.name not in names:
            raise invalid(
                f"tool_choice names {choice.function.name!r}, which tools do not have.",
                "tool_choice",
            )
        return Reading(parsers, named=choice.function.name, reasoning=show, structured=True)
    if choice == "required":
        return Reading(parsers, required=True, parallel=parallel, reasoning=show, structured=True)
    if parsers.tools is None:
        raise invalid(
            "this model's chat template has no tool calls that Quire knows; set tool_choice to "
            "required or to a function, or start the server with --tool-call-parser.",
            "tools",
        )
    return Reading(
        parsers,
        calls=True,
        parallel=parallel,
        reasoning=show,
        strict=any(tool.function.strict for tool in body.tools),
        types=_types(body.tools) if parsers.tools.typed else None,
    )


def with_tools(
    params: SamplingParams, body: ChatRequest, reading: Reading, tokenizer: Tokenizer
) -> SamplingParams:
    """`params`, under which the answer can be read as it is to be.

    Raises:
        ApiError: 400 for a function's schema that is none.
    """
    wanted = structure_of_calls(body.tools or [], reading) or params.structured_outputs
    if wanted is not None:
        wanted = msgspec.structs.replace(wanted, reasoning=reading.reasoning_marks)
        params = params.replace(structured_outputs=wanted)
    marks = reading.parsers.marks(tools=reading.calls)
    if reading.needed and marks.intersection(tokenizer.special_token_strings):
        return params.replace(skip_special_tokens=False)
    return params


def tool_definitions(body: ChatRequest) -> list[dict[str, object]] | None:
    """For the chat template; none where none is to be called."""
    if not body.tools or body.tool_choice == "none":
        return None
    return [
        {"type": "function", "function": _without_none(msgspec.to_builtins(tool.function))}
        for tool in body.tools
    ]


def template_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """As templates expect it, with only the fields that are there.

    Raises:
        ApiError: 400 for a field that its role does not have, or lacks.
    """
    where = f"messages[{index}]"
    calls = message.tool_calls
    if calls and message.role != "assistant":
        raise invalid("Only the assistant calls tools.", f"{where}.tool_calls")
    if message.content is None and not calls:
        raise invalid(f"{where}.content is missing.", f"{where}.content")
    if (message.tool_call_id is not None) != (message.role == "tool"):
        has = "needs" if message.role == "tool" else "cannot have"
        raise invalid(
            f"A message of the role {message.role} {has} a tool_call_id.", f"{where}.tool_call_id"
        )
    content: str | list[dict[str, str]]
    if message.content is None or isinstance(message.content, str):
        content = message.content or ""
    else:
        content = [{"type": "text", "text": part.text} for part in message.content]
    result: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if (found := getattr(message, name)) is not None:
            result[name] = found
    if reasoning := message.reasoning_content or message.reasoning:
        result["reasoning_content"] = reasoning
    if calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, where),
                },
            }
            for call in calls
        ]
    return result


class ChoiceReader:
    """One choice's text, piece by piece, as content, reasoning and tool calls."""

    def __init__(self, reading: Reading, tokenizer: Tokenizer, output: RequestOutput) -> None:
        self._parser = reading.parser(tokenizer, output)
        self._reading = reading
        self._tokens = TokenSpans()

    def read(self, completion: CompletionOutput) -> deltas.Delta:
        """What an output, the whole or a DELTA, tells; content with its tokens' logprobs."""
        self._tokens.add(completion)
        parts = self._parser.push(completion.text).parts
        if completion.finish_reason is not None:
            parts += self._parser.end().parts
        delta = deltas.Delta()
        for part in parts:
            if isinstance(part, deltas.TextDelta) and part.kind == "content":
                part.logprobs = self._tokens.take(part.spans)
            if self._is_shown(part):
                delta.add(part)
        return delta

    def _is_shown(self, part: deltas.TextDelta | deltas.CallDelta) -> bool:
        if isinstance(part, deltas.CallDelta):
            return self._reading.parallel or part.index == 0
        return self._reading.reasoning or part.kind == "content"

    def finish_reason(self, reason: str | None) -> str | None:
        """The choice's own; a stop behind a tool call is the call's."""
        return "tool_calls" if reason == "stop" and self._parser.num_calls else reason

    def delta(self, found: deltas.Delta) -> Delta:
        """As an event tells it."""
        delta = Delta()
        if found.content:
            delta.content = found.content
        if found.reasoning:
            delta.reasoning = delta.reasoning_content = found.reasoning
        if found.calls:
            delta.tool_calls = [self._piece(call) for call in found.calls]
        return delta

    def message(self, found: deltas.Delta) -> AssistantMessage:
        """As a whole answer tells it."""
        message = AssistantMessage(found.content)
        if found.reasoning:
            message.reasoning = message.reasoning_content = found.reasoning
        calls: list[ToolCall] = []
        for call in found.calls:
            if call.name is not None:
                call_id = self._reading.new_call_id()
                calls.append(ToolCall(UNSET, FunctionCall(call.name, ""), call_id, "function"))
            calls[-1].function.arguments += call.arguments
        if calls:
            message.tool_calls = calls
            message.content = found.content or None
        return message

    def _piece(self, call: deltas.CallDelta) -> ToolCall:
        if call.name is None:
            return ToolCall(call.index, FunctionCall(UNSET, call.arguments))
        function = FunctionCall(call.name, call.arguments)
        return ToolCall(call.index, function, self._reading.new_call_id(), "function")


def _types(tools: Sequence[ToolDefinition]) -> ValueTypes:
    """Of the functions' parameters."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for tool in tools:
        schema = tool.function.parameters or {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found[tool.function.name] = {
                name: allowed_types(value, schema) for name, value in properties.items()
            }
    return found


def _has_structure(body: ChatRequest) -> bool:
    wanted = body.response_format
    guided = (body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)
    return (
        (wanted is not None and wanted.type != "text")
        or body.structured_outputs is not None
        or any(value is not None for value in guided)
    )


def _arguments(text: str, where: str) -> dict[str, Any]:
    """An echoed call's arguments, as templates expect them."""
    found = read_object(text or "{}")
    if found is None:
        raise invalid(
            "The arguments of a tool call are the text of a JSON object.", f"{where}.tool_calls"
        )
    return found


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
