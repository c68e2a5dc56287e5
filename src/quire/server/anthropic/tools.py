"""The tools of a request: the client's own, and those whose schema Anthropic defines."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Literal

from starlette.requests import Request

from quire.server.anthropic.protocol import ToolChoiceParam
from quire.server.errors import invalid
from quire.server.http.body import read_part
from quire.server.notices import ignore
from quire.server.openai.tool_types import (
    ChatTool,
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    ToolDefinition,
)
from quire.server.rules import Name, Rules, Strict, ignored
from quire.system.records import dataclass

Choice = Literal["none", "auto", "required"]
_CHOICES: dict[str, Choice] = {"auto": "auto", "any": "required", "none": "none"}
_PATH = {"type": "string"}
_LINES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_EDITS: dict[str, Any] = {
    "path": _PATH,
    "view_range": _LINES,
    "file_text": {"type": "string"},
    "old_str": {"type": "string"},
    "new_str": {"type": "string"},
    "insert_line": {"type": "integer"},
    "insert_text": {"type": "string"},
}


def _commands(*names: str, **more: Any) -> dict[str, Any]:
    command = {"type": "string", "enum": list(names)}
    return {"type": "object", "properties": {"command": command, **_EDITS, **more}}


_DEFINED: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a bash session, which keeps its state, or restart the session.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}},
        },
    ),
    "text_editor_": (
        "View, create and edit text files, or insert a text behind a line of one.",
        {**_commands("view", "create", "str_replace", "insert"), "required": ["command", "path"]},
    ),
    "memory_": (
        "Keep notes as files below /memories between conversations.",
        {
            **_commands(
                "view", "create", "str_replace", "insert", "delete", "rename",
                old_path=_PATH, new_path=_PATH,
            ),
            "required": ["command"],
        },
    ),
}  # fmt: skip
"""Type prefix → description and schema of tools that clients run but do not define."""


class ToolParam(Strict):
    name: Name
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    """Shown to the model as the schema's `examples`."""
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None
    """Stream the input as the model writes it; else send it whole."""
    cache_control: Any = None

    rules: ClassVar[Rules] = {
        "defer_loading": ignored("Every tool is shown to the model at once.", strict=(False,)),
        "max_characters": ignored("The client cuts the output of its tools."),
    }


@dataclass(slots=True)
class GivenTools:
    """The tools that the model can call.

    Attributes:
        places: the index of each among the request's tools.
        eager: names of tools whose input is streamed as the model writes it.
    """

    definitions: list[ChatTool] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    eager: set[str] = field(default_factory=set)


def read_given_tools(request: Request, tools: list[dict[str, Any]]) -> GivenTools:
    """Return the tools that the client runs; notices report the others.

    Raises:
        ApiError: 400 for an invalid tool.
    """
    given = GivenTools()
    for index, value in enumerate(tools):
        where = f"tools[{index}]"
        kind = value.get("type") or "custom"
        if kind == "function":
            raise invalid(
                f"{where} has the form of OpenAI's API; send name, description and input_schema.",
                f"{where}.type",
            )
        defined = _defined(kind)
        if kind != "custom" and defined is None:
            name = f"{kind[:64]!r}" if isinstance(kind, str) else "of this type"
            ignore(request, where, f"The tool {name} is left out: this server does not run it.")
            continue
        tool: ToolParam = read_part(request, value, ToolParam, where)
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            ignore(request, where, "The tool is left out: this server runs no code to call it.")
            continue
        given.definitions.append(ToolDefinition(_function(tool, defined, where)))
        given.places.append(index)
        if tool.eager_input_streaming:
            given.eager.add(tool.name)
    return given


def read_choice(choice: ToolChoiceParam | None, given: GivenTools) -> ChosenTool | Choice | None:
    """Return `tool_choice` in the chat API's form.

    Raises:
        ApiError: 400 if it contradicts itself, or asks for an unknown tool.
    """
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        raise invalid(
            "tool_choice needs a name if its type is tool, and must have none otherwise.",
            "tool_choice",
        )
    if not given.definitions:
        if choice.type in ("auto", "none"):
            return None
        raise invalid(f"tool_choice {choice.type} needs tools that the client runs.", "tool_choice")
    if choice.name is not None:
        return ChosenTool(ChosenFunction(choice.name))
    return _CHOICES[choice.type]


def _defined(kind: object) -> tuple[str, dict[str, Any]] | None:
    """Return the description and schema of a type that Anthropic defines."""
    if not isinstance(kind, str):
        return None
    return next((known for prefix, known in _DEFINED.items() if kind.startswith(prefix)), None)


def _function(
    tool: ToolParam, defined: tuple[str, dict[str, Any]] | None, where: str
) -> FunctionDefinition:
    description, schema = defined or (tool.description, tool.input_schema)
    if schema is None:
        raise invalid(f"{where}.input_schema is missing.", f"{where}.input_schema")
    schema = {name: value for name, value in schema.items() if value is not None}
    if tool.input_examples:
        schema["examples"] = tool.input_examples
    return FunctionDefinition(tool.name, description, schema, tool.strict)
