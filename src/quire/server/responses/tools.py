"""The tools of a Responses request as the functions of the chat that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request

from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.body import read_part
from quire.server.errors import invalid
from quire.server.leniency import similar
from quire.server.notices import Notice, ignore, note
from quire.server.openai.generation import Generation
from quire.server.openai.protocol import (
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    ToolDefinition,
)
from quire.server.openai.tools import Reading
from quire.server.responses.custom_input import InputReader, parameters
from quire.server.responses.tool_types import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedCustom,
    NamedFunction,
    Tool,
    ToolChoice,
)

_KINDS: dict[str, type[Tool]] = {"function": FunctionTool, "custom": CustomTool}
_ONLY_SHOWN = (
    "The model sees the grammar. Its input is not held to it, unless tool_choice names the tool."
)
Choice = Literal["none", "auto", "required"] | ChosenTool | None


@dataclass(slots=True)
class ToolSet:
    """The tools that the model may call.

    Attributes:
        given: those that this server serves, whether or not they are allowed.
        tools: those that the model sees.
        indices: of these in the request.
        choice: the chat's `tool_choice`.
    """

    given: list[Tool] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    choice: Choice = None

    @property
    def definitions(self) -> list[ToolDefinition] | None:
        """As the chat API has them."""
        return [ToolDefinition("function", _function(tool)) for tool in self.tools] or None

    def place(self, param: str) -> str:
        """Return the field of the request that an error of the chat names."""
        head, middle, rest = param.partition("].function.")
        index = head.removeprefix("tools[")
        if not middle or index == head or int(index) >= len(self.tools):
            return param
        name = f"tools[{self.indices[int(index)]}].{rest}"
        return name.replace(".parameters", ".format") if self._is_custom(int(index)) else name

    def input_reader(self, name: str) -> InputReader | None:
        """Return what reads the input of a call of the custom tool `name`; None for a function."""
        tool = next((one for one in self.tools if one.name == name), None)
        return InputReader(plain=tool is self._forced) if isinstance(tool, CustomTool) else None

    def hold(self, call: Generation, reading: Reading) -> None:
        """Hold the answer to the grammar of the custom tool that has to be called."""
        tool = self._forced
        if tool is None or tool.grammar is None:
            return
        kind = "regex" if tool.grammar.syntax == "regex" else "grammar"
        index = self.indices[self.tools.index(tool)]
        wanted: dict[str, Any] = {kind: tool.grammar.definition}
        structure = StructuredOutputsParams(
            **wanted,
            reasoning=reading.reasoning_marks,
            field=f"tools[{index}].format.definition",
        )
        call.params = call.params.replace(structured_outputs=structure)

    @property
    def _forced(self) -> CustomTool | None:
        """The tool that has to be called, if it has a grammar: the answer is its input."""
        chosen = self.choice.function if isinstance(self.choice, ChosenTool) else None
        if chosen is None:
            return None
        name = chosen.name
        found = (one for one in self.tools if one.name == name and isinstance(one, CustomTool))
        return next((one for one in found if one.grammar is not None), None)

    def _is_custom(self, index: int) -> bool:
        return isinstance(self.tools[index], CustomTool)


def read_tool_set(
    request: Request, raw: list[dict[str, Any]], choice: ToolChoice | None
) -> ToolSet:
    """Return the tools that this server serves; the others are notices.

    Raises:
        ApiError: 400 for a tool that is wrong, or a choice that names none of them.
    """
    found = ToolSet()
    for index, one in enumerate(raw):
        where = f"tools[{index}]"
        kind = one.get("type")
        if isinstance(kind, str) and kind not in _KINDS:
            if (meant := similar(kind, _KINDS)) is not None:
                raise invalid(f"{where}.type is {kind!r}; did you mean {meant}?", f"{where}.type")
            ignore(request, where, f"This server runs no {kind}; the model does not see the tool.")
            continue
        found.given.append(read_part(request, one, Tool, where))
        found.indices.append(index)
    found.tools = found.given
    _choose(found, choice)
    for tool, index in zip(found.tools, found.indices, strict=True):
        if _is_only_shown(tool, found.choice):
            note(request, Notice(f"tools[{index}].format", _ONLY_SHOWN))
    return found


def _choose(found: ToolSet, choice: ToolChoice | None) -> None:
    if isinstance(choice, AllowedTools):
        _allow(found, choice)
    elif isinstance(choice, NamedFunction | NamedCustom):
        kind = FunctionTool if isinstance(choice, NamedFunction) else CustomTool
        if not any(one.name == choice.name for one in found.tools if isinstance(one, kind)):
            raise invalid(
                f"tool_choice names {choice.name!r}, which tools do not have.", "tool_choice.name"
            )
        found.choice = ChosenTool("function", ChosenFunction(choice.name))
    else:
        found.choice = choice


def _allow(found: ToolSet, choice: AllowedTools) -> None:
    """Leave the allowed tools. Those that this server does not run cannot be called anyway."""
    served = {(_type(one), one.name) for one in found.given}
    wanted: set[tuple[str, str]] = set()
    for index, one in enumerate(choice.tools):
        kind, name = one.type, one.name or ""
        if kind in _KINDS and (kind, name) not in served:
            raise invalid(
                f"tool_choice allows {name[:64]!r}, which tools do not have.",
                f"tool_choice.tools[{index}]",
            )
        wanted.add((kind, name))
    kept = [
        (tool, index)
        for tool, index in zip(found.given, found.indices, strict=True)
        if (_type(tool), tool.name) in wanted
    ]
    found.tools, found.indices = [tool for tool, _ in kept], [index for _, index in kept]
    found.choice = choice.mode


def _is_only_shown(tool: Tool, choice: Choice) -> bool:
    """Whether the model sees a grammar and is not held to it."""
    grammar = tool.grammar if isinstance(tool, CustomTool) else None
    return grammar is not None and grammar.syntax == "lark" and not isinstance(choice, ChosenTool)


def _type(tool: Tool) -> str:
    return str(tool.__struct_config__.tag)


def _function(tool: Tool) -> FunctionDefinition:
    if isinstance(tool, FunctionTool):
        return FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)
    grammar = tool.grammar
    if grammar is None:
        return FunctionDefinition(tool.name, tool.description, parameters(None))
    syntax = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
    told = f"The input is a text of this {syntax}:\n{grammar.definition}"
    description = f"{tool.description}\n\n{told}" if tool.description else told
    if grammar.syntax == "lark":
        return FunctionDefinition(tool.name, description, parameters(None))
    pattern = f"^(?:{grammar.definition})$"
    return FunctionDefinition(tool.name, description, parameters(pattern), strict=True)
