"""Tools in a chat: how a request's answers are read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import msgspec

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams
from quire.server.errors import invalid
from quire.server.openai.calls import could_be_call, structure_of_calls
from quire.server.openai.custom import Custom
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.reasoning import limited
from quire.server.openai.sampling import GUIDED, structured_outputs
from quire.server.openai.tool_types import (
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    ToolDefinition,
)
from quire.server.tools import deltas
from quire.server.tools.output import ValueTypes
from quire.server.tools.parser import OutputParser
from quire.server.tools.table import Parsers, ToolFormat
from quire.system.records import dataclass
from quire.text.json_types import allowed_types
from quire.text.reasoning import prompt_reasoning
from quire.text.tokenizers.tokenizer import Tokenizer

ID_LENGTH = 24
NO_CUSTOMS: Mapping[str, Custom] = {}


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
        customs: the custom tools among the functions, by name.
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
    customs: Mapping[str, Custom] = field(default_factory=dict)

    @property
    def structure(self) -> StructuredOutputsParams | None:
        """Return the structure of an answer that is the input of a custom tool."""
        custom = self.customs.get(self.named or "")
        return None if custom is None else custom.structure

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


def functions_of(body: ChatRequest) -> list[FunctionDefinition]:
    """Return the functions of a request in its plain form; see `openai.conversation`."""
    return [tool.function for tool in body.tools or () if isinstance(tool, ToolDefinition)]


def read_tools(
    body: ChatRequest, parsers: Parsers, customs: Mapping[str, Custom] = NO_CUSTOMS
) -> Reading:
    """Return how to read the answers under `tools` and `tool_choice`.

    Args:
        customs: the custom tools among the functions, by name.

    Raises:
        ApiError: 400 if they contradict each other, or Quire cannot read the model's calls.
    """
    structured = _wants_json(body) or _has_other_structure(body)
    reasoning = body.include_reasoning is not False
    reading = Reading(parsers, reasoning=reasoning, structured=structured, customs=customs)
    functions = functions_of(body)
    if not functions:
        if body.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools.", "tool_choice")
        return reading
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise invalid("tools has two functions with the same name.", "tools")
    choice = body.tool_choice or "auto"
    if choice == "none":
        return reading
    if choice == "required" and len(names) == 1 and names[0] in customs:
        choice = ChosenTool(ChosenFunction(names[0]))
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
            "This model's chat template has no known format of tool calls; set tool_choice to "
            "required or to a function, or start the server with --tool-call-parser.",
            "tools",
        )
    if structured:
        _check_beside(body, parsers.tools)
    return replace(
        reading,
        calls=True,
        parallel=parallel,
        strict=any(function.strict for function in functions),
        structured=False,
        either=structured,
        types=_types(functions) if parsers.tools.typed else None,
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
            "This model writes calls as JSON objects without marks, which this response_format "
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
    wanted = structure_of_calls(functions_of(body), reading, text) or text
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
    functions = [msgspec.to_builtins(function) for function in functions_of(body)]
    if not functions or body.tool_choice == "none":
        return None
    given = [{k: v for k, v in fields.items() if v is not None} for fields in functions]
    return [{"type": "function", "function": fields} for fields in given]


def _types(functions: Sequence[FunctionDefinition]) -> ValueTypes:
    found: dict[str, dict[str, frozenset[str]]] = {}
    for function in functions:
        schema = function.parameters or {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found[function.name] = {
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
