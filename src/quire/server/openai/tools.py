"""Tools in a chat: reads the request's tools, and the calls in the answer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import UNSET

from quire.core.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import ReasoningMarks
from quire.server.errors import invalid
from quire.server.openai.answers import AssistantMessage, Delta, FunctionCall, ToolCall
from quire.server.openai.calls import could_be_call, structure_of_calls
from quire.server.openai.protocol import ChatRequest, ChosenTool, ToolDefinition
from quire.server.openai.reasoning import limited
from quire.server.openai.sampling import GUIDED, structured_outputs
from quire.server.tools import deltas
from quire.server.tools.deltas import TokenSpans
from quire.server.tools.output import ValueTypes
from quire.server.tools.parser import OutputParser
from quire.server.tools.table import Parsers, ToolFormat
from quire.system.records import dataclass
from quire.text.json_types import allowed_types
from quire.text.reasoning import prompt_reasoning
from quire.text.tokenizers.tokenizer import Tokenizer

ID_LENGTH = 24


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a request's answers.

    Attributes:
        calls: look for tool calls in the model's own format.
        required: the answer is a JSON list of calls only.
        named: the function whose arguments the answer is.
        parallel: an answer may have several calls.
        reasoning: return it.
        strict: the arguments of optional calls follow their schemas.
        either: the text is either JSON or only calls.
        types: types of the functions' parameters.
        functions: return a call as `function_call`, the older form.
        structured: the text has a structure, which begins after the reasoning.
        called: number of calls in the conversation so far.
    """

    parsers: Parsers
    calls: bool = False
    required: bool = False
    named: str | None = None
    parallel: bool = True
    reasoning: bool = True
    strict: bool = False
    either: bool = False
    structured: bool = False
    called: int = 0
    types: ValueTypes | None = None
    functions: bool = False

    @property
    def needed(self) -> bool:
        """Return whether the text must be parsed; else all of it is content."""
        if self.required or self.named is not None:
            return True
        if self.structured:
            return self.reasoning_marks is not None
        return self.calls or self.parsers.reads_all

    @property
    def may_call(self) -> bool:
        """Return whether the answer may have calls."""
        return self.calls or self.required or self.named is not None

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """Return the texts around the reasoning, if the format has such texts."""
        known = self.parsers.reasoning
        if not known or not known.begins:
            return None
        calls = self.parsers.tools.begins if self.parsers.tools and self.strict else ()
        return ReasoningMarks(known.begins, known.ends, barred=calls)

    def new_call_id(self, call: deltas.CallDelta) -> str:
        """Return a call's id: the model's own, or one in the format of its template."""
        known = self.parsers.tools
        if call.id:
            return call.id
        if known is not None and known.numbered_ids:
            return f"functions.{call.name}:{self.called + call.index}"
        if known is not None and known.id_length is not None:
            return secrets.token_hex(known.id_length)[: known.id_length]
        return f"call_{secrets.token_hex(ID_LENGTH // 2)}"

    def parser(self, tokenizer: Tokenizer, output: RequestOutput) -> OutputParser:
        """Return the parser of one choice."""
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
            either=self.either,
        )


def read_tools(body: ChatRequest, parsers: Parsers) -> Reading:
    """Return how to read the answers under `tools` and `tool_choice`.

    Raises:
        ApiError: 400 if they contradict each other, or Quire cannot read the model's calls.
    """
    structured = _wants_json(body) or _has_other_structure(body)
    reading = Reading(parsers, reasoning=body.include_reasoning is not False, structured=structured)
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools.", "tool_choice")
        return reading
    names = [tool.function.name for tool in body.tools]
    if len(set(names)) < len(names):
        raise invalid("tools has two functions with the same name.", "tools")
    choice = body.tool_choice or "auto"
    if choice == "none":
        return reading
    called = sum(len(message.tool_calls or ()) for message in body.messages)
    reading = replace(reading, called=called)
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ChosenTool):
        if choice.function is None:
            raise invalid("tool_choice.function is missing.", "tool_choice.function")
        if (name := choice.function.name) not in names:
            raise invalid(f"tool_choice names {name!r}, which is not in tools.", "tool_choice")
        return replace(reading, named=name, structured=True)
    if choice == "required":
        return replace(reading, required=True, parallel=parallel, structured=True)
    if parsers.tools is None:
        raise invalid(
            "this model's chat template has no known format of tool calls; set tool_choice to "
            "required or to a function, or start the server with --tool-call-parser.",
            "tools",
        )
    if structured:
        _check_beside(body, parsers.tools)
    return replace(
        reading,
        calls=True,
        parallel=parallel,
        strict=any(tool.function.strict for tool in body.tools),
        structured=False,
        either=structured,
        types=_types(body.tools) if parsers.tools.typed else None,
    )


def _check_beside(body: ChatRequest, calls: ToolFormat) -> None:
    """Raise `ApiError` if a structured text could be mistaken for calls."""
    if _has_other_structure(body):
        raise invalid(
            "tools do not work with this structure, unless tool_choice is none; they work with "
            "a JSON response_format.",
            "tools",
        )
    if calls.unmarked and could_be_call(structured_outputs(body)):
        raise invalid(
            "this model writes calls as JSON objects without marks, which this response_format "
            "could be mistaken for; send the schema of an object whose properties are not name "
            "and parameters, or set tool_choice to none or required.",
            "response_format",
        )


def with_tools(
    params: SamplingParams, body: ChatRequest, reading: Reading, tokenizer: Tokenizer
) -> SamplingParams:
    """Return `params` with the structure and the settings that reading the answer needs.

    Raises:
        ApiError: 400 if a function's schema is invalid.
    """
    text = params.structured_outputs
    wanted = structure_of_calls(body.tools or [], reading, text) or text
    if wanted is not None:
        wanted = msgspec.structs.replace(wanted, reasoning=reading.reasoning_marks)
        params = params.replace(structured_outputs=wanted)
    params = limited(params, body.thinking_token_budget, reading.parsers, calls=reading.calls)
    marks = reading.parsers.marks(tools=reading.calls)
    if reading.needed and marks.intersection(tokenizer.special_token_strings):
        return params.replace(skip_special_tokens=False)
    return params


def tool_definitions(body: ChatRequest) -> list[dict[str, object]] | None:
    """Return the tools for the chat template; None if none may be called."""
    if not body.tools or body.tool_choice == "none":
        return None
    functions = [msgspec.to_builtins(tool.function) for tool in body.tools]
    given = [{k: v for k, v in fields.items() if v is not None} for fields in functions]
    return [{"type": "function", "function": fields} for fields in given]


class ChoiceReader:
    """Splits one choice's text into content, reasoning and tool calls, piece by piece.

    Attributes:
        reasoning_tokens: tokens of the reasoning so far, returned or not.
    """

    def __init__(self, reading: Reading, tokenizer: Tokenizer, output: RequestOutput) -> None:
        self._parser = reading.parser(tokenizer, output)
        self._reading = reading
        self._logprobs: TokenSpans[PositionLogprobs] = TokenSpans()
        self._tokens: TokenSpans[int] = TokenSpans()
        self.reasoning_tokens = 0
        self._has_content = False

    def read(self, completion: CompletionOutput) -> deltas.Delta:
        """Return the parts of an output, whole or DELTA; content has its tokens' logprobs."""
        if completion.logprobs is not None:
            self._logprobs.add(completion.logprobs, completion.text_ends)
        if self._reading.parsers.reasoning is not None:
            self._tokens.add(completion.token_ids, completion.text_ends)
        parts = self._parser.push(completion.text).parts
        if completion.finish_reason is not None:
            parts += self._parser.end().parts
        delta = deltas.Delta()
        for part in parts:
            if isinstance(part, deltas.TextDelta):
                tokens = self._tokens.take(part.spans)
                if part.kind == "content":
                    part.logprobs = self._logprobs.take(part.spans)
                else:
                    self.reasoning_tokens += len(tokens)
            if self._is_shown(part):
                delta.add(part)
        self._has_content = self._has_content or bool(delta.content)
        return delta

    @property
    def has_nothing(self) -> bool:
        """Return whether there are neither content nor calls so far."""
        return not self._has_content and not self._parser.num_calls

    def _is_shown(self, part: deltas.TextDelta | deltas.CallDelta) -> bool:
        if isinstance(part, deltas.CallDelta):
            return self._reading.parallel or part.index == 0
        return self._reading.reasoning or part.kind == "content"

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the choice's finish reason: that of a call if there is one."""
        if reason != "stop" or not self._parser.num_calls:
            return reason
        return "function_call" if self._reading.functions else "tool_calls"

    def delta(self, found: deltas.Delta) -> Delta:
        """Return the parts as the delta of an event."""
        delta = Delta()
        if found.content:
            delta.content = found.content
        if found.reasoning:
            delta.reasoning = delta.reasoning_content = found.reasoning
        if found.calls:
            pieces = [self._piece(call) for call in found.calls]
            if self._reading.functions:  # at most one call, so one piece
                delta.function_call = pieces[0].function
            else:
                delta.tool_calls = pieces
        return delta

    def message(self, found: deltas.Delta) -> AssistantMessage:
        """Return the parts as the message of a whole answer."""
        message = AssistantMessage(found.content)
        if found.reasoning:
            message.reasoning = message.reasoning_content = found.reasoning
        calls: list[ToolCall] = []
        for call in found.calls:
            if call.name is not None:
                call_id = self._reading.new_call_id(call)
                calls.append(ToolCall(UNSET, FunctionCall(call.name, ""), call_id, "function"))
            calls[-1].function.arguments += call.arguments
        if calls:
            if self._reading.functions:
                message.function_call = calls[0].function
            else:
                message.tool_calls = calls
            message.content = found.content or None
        return message

    def _piece(self, call: deltas.CallDelta) -> ToolCall:
        if call.name is None:
            return ToolCall(call.index, FunctionCall(UNSET, call.arguments))
        function = FunctionCall(call.name, call.arguments)
        return ToolCall(call.index, function, self._reading.new_call_id(call), "function")


def _types(tools: Sequence[ToolDefinition]) -> ValueTypes:
    """Return the types of the functions' parameters."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for tool in tools:
        schema = tool.function.parameters or {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found[tool.function.name] = {
                name: allowed_types(value, schema) for name, value in properties.items()
            }
    return found


def _wants_json(body: ChatRequest) -> bool:
    """Return whether OpenAI's field asks for JSON."""
    return body.response_format is not None and body.response_format.type.startswith("json")


def _has_other_structure(body: ChatRequest) -> bool:
    of_format = body.response_format is not None and body.response_format.type == "structural_tag"
    names = ("structured_outputs", *GUIDED)
    return of_format or any(getattr(body, name) is not None for name in names)
