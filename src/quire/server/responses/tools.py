"""The tools of a Responses request as functions of the chat request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal

from starlette.requests import Request

from quire.server.errors import invalid
from quire.server.http.body import read_part
from quire.server.leniency import similar
from quire.server.message_parts import flatten
from quire.server.notices import ignore
from quire.server.openai.custom import Custom, as_function
from quire.server.openai.tool_types import (
    ChatTool,
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    ToolDefinition,
)
from quire.server.responses.tool_types import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedCustom,
    NamedFunction,
    Namespace,
    Tool,
    ToolChoice,
)
from quire.system.records import dataclass

_KINDS: dict[str, type[Tool]] = {"function": FunctionTool, "custom": CustomTool}
Choice = Literal["none", "auto", "required"] | ChosenTool | None


@dataclass(slots=True)
class ServedTool:
    """A tool that the model may call.

    Attributes:
        place: the request's field with the tool.
        name: the model's name for it: the tool's, unless several tools have that name.
    """

    tool: Tool
    place: str
    namespace: Namespace | None
    name: str

    @property
    def definition(self) -> ToolDefinition:
        """Return the tool as the chat API defines it."""
        tool = self.tool
        function = (
            as_function(tool)
            if isinstance(tool, CustomTool)
            else FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)
        )
        function.name = self.name
        if self.namespace is not None and self.namespace.description:
            group = f"{self.namespace.name}: {self.namespace.description}"
            own = function.description
            function.description = f"{own}\n\n{group}" if own else group
        return ToolDefinition(function)


@dataclass(slots=True)
class ToolSet:
    """The tools that the model may call.

    Attributes:
        given: tools that this server supports, whether or not they are allowed.
        tools: tools that the model sees.
        choice: the chat's `tool_choice`.
    """

    given: list[ServedTool] = field(default_factory=list)
    tools: list[ServedTool] = field(default_factory=list)
    choice: Choice = None

    @property
    def definitions(self) -> list[ChatTool] | None:
        """Return the tools as the chat API defines them."""
        return [one.definition for one in self.tools] or None

    @property
    def customs(self) -> dict[str, Custom]:
        """Return the custom tools by the model's names for them."""
        return {
            one.name: Custom(one.tool, one.place)
            for one in self.tools
            if isinstance(one.tool, CustomTool)
        }

    def place(self, param: str) -> str:
        """Return this request's field for a field in an error of the chat request."""
        head, middle, rest = param.partition("].function.")
        index = head.removeprefix("tools[")
        if not middle or index == head or int(index) >= len(self.tools):
            return param
        return f"{self.tools[int(index)].place}.{rest}"

    def called(self, name: str) -> tuple[str, str | None]:
        """Return the client's name and namespace of the tool that the model calls by `name`."""
        one = next((one for one in self.tools if one.name == name), None)
        if one is None:
            return name, None
        return one.tool.name, one.namespace.name if one.namespace else None

    def name_of(self, name: str, namespace: str | None) -> str:
        """Return the model's name for a tool."""
        for one in self.given:
            if one.namespace and one.namespace.name == namespace and one.tool.name == name:
                return one.name
        return name


def read_tool_set(
    request: Request, raw: list[dict[str, Any]], choice: ToolChoice | None
) -> ToolSet:
    """Return the tools that this server supports; notices report the others.

    Raises:
        ApiError: 400 for an invalid tool, or a choice of an unknown tool.
    """
    found = ToolSet(list(_served(request, raw, "tools")))
    times = Counter(one.name for one in found.given)
    for one in found.given:
        if one.namespace is not None and times[one.name] > 1:
            one.name = f"{one.namespace.name}__{one.name}"
    found.tools = found.given
    _choose(found, choice)
    return found


def _served(
    request: Request, raw: list[dict[str, Any]], place: str, namespace: Namespace | None = None
) -> Iterator[ServedTool]:
    """Yield the tools of a list, and of the namespaces in it."""
    for index, one in enumerate(raw):
        where = f"{place}[{index}]"
        for form in _KINDS:
            flatten(one, form)
        flatten(one.get("format"), "grammar")
        kind = one.get("type")
        if kind == "namespace" and namespace is None:
            inner = read_part(request, one, Namespace, where)
            yield from _served(request, inner.tools, f"{where}.tools", inner)
            continue
        if isinstance(kind, str) and kind not in _KINDS:
            if (meant := similar(kind, _KINDS)) is not None:
                raise invalid(f"{where}.type is {kind!r}; did you mean {meant}?", f"{where}.type")
            ignore(
                request, where, f"This server does not run {kind}; the model does not see the tool."
            )
            continue
        tool = read_part(request, one, Tool, where)
        yield ServedTool(tool, where, namespace, tool.name)


def _choose(found: ToolSet, choice: ToolChoice | None) -> None:
    if isinstance(choice, AllowedTools):
        _allow(found, choice)
    elif isinstance(choice, NamedFunction | NamedCustom):
        kind = FunctionTool if isinstance(choice, NamedFunction) else CustomTool
        named = (
            one
            for one in found.tools
            if isinstance(one.tool, kind) and choice.name in (one.name, one.tool.name)
        )
        if (one := next(named, None)) is None:
            raise invalid(
                f"tool_choice names {choice.name!r}, which is not in tools.", "tool_choice.name"
            )
        found.choice = ChosenTool(ChosenFunction(one.name))
    else:
        found.choice = choice


def _allow(found: ToolSet, choice: AllowedTools) -> None:
    """Keep the allowed tools. Unsupported types may be allowed; they cannot be called anyway."""
    served = {key for one in found.given for key in _keys(one)}
    wanted: set[tuple[str, str]] = set()
    for index, one in enumerate(choice.tools):
        kind, name = one.type, one.name or ""
        if kind in (*_KINDS, "namespace") and (kind, name) not in served:
            raise invalid(
                f"tool_choice allows {name[:64]!r}, which is not in tools.",
                f"tool_choice.tools[{index}]",
            )
        wanted.add((kind, name))
    found.tools = [one for one in found.given if wanted.intersection(_keys(one))]
    found.choice = choice.mode


def _keys(one: ServedTool) -> set[tuple[str, str]]:
    """Return the types and names by which a choice may allow a tool."""
    tag = str(one.tool.__struct_config__.tag)
    own = {(tag, one.tool.name), (tag, one.name)}
    return own if one.namespace is None else {*own, ("namespace", one.namespace.name)}
