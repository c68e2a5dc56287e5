"""The tools of a Responses request as functions of the chat request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from starlette.requests import Request

from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.errors import invalid
from quire.server.http.body import read_part
from quire.server.leniency import similar
from quire.server.message_parts import flatten
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
    GrammarInput,
    NamedCustom,
    NamedFunction,
    Namespace,
    Tool,
    ToolChoice,
)
from quire.system.records import dataclass
from quire.text.lark_regex import regex_of

_KINDS: dict[str, type[Tool]] = {"function": FunctionTool, "custom": CustomTool}
_ONLY_SHOWN = (
    "The model sees the grammar. It has no regular expression, so it is enforced only if the tool "
    "must be called."
)
Choice = Literal["none", "auto", "required"] | ChosenTool | None


@dataclass(slots=True)
class ServedTool:
    """A tool that the model may call.

    Attributes:
        place: the request's field with the tool.
        namespace: the namespace that contains it.
        name: the model's name for it: the tool's, unless several tools have that name.
    """

    tool: Tool
    place: str
    namespace: Namespace | None
    name: str

    @property
    def grammar(self) -> GrammarInput | None:
        return self.tool.grammar if isinstance(self.tool, CustomTool) else None

    @property
    def definition(self) -> ToolDefinition:
        """Return the tool as the chat API defines it."""
        function = _function(self.tool)
        function.name = self.name
        if self.namespace is not None and self.namespace.description:
            group = f"{self.namespace.name}: {self.namespace.description}"
            own = function.description
            function.description = f"{own}\n\n{group}" if own else group
        return ToolDefinition(function)


class Called(NamedTuple):
    """A called tool under its client's names.

    Attributes:
        reader: reads the input of a custom tool; None for a function.
    """

    name: str
    namespace: str | None = None
    reader: InputReader | None = None


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
    def definitions(self) -> list[ToolDefinition] | None:
        """Return the tools as the chat API defines them."""
        return [one.definition for one in self.tools] or None

    def place(self, param: str) -> str:
        """Return this request's field for a field in an error of the chat request."""
        head, middle, rest = param.partition("].function.")
        index = head.removeprefix("tools[")
        if not middle or index == head or int(index) >= len(self.tools):
            return param
        one = self.tools[int(index)]
        name = f"{one.place}.{rest}"
        is_custom = isinstance(one.tool, CustomTool)
        return name.replace(".parameters", ".format") if is_custom else name

    def called(self, name: str) -> Called:
        """Return the tool that the model calls by `name`."""
        one = next((one for one in self.tools if one.name == name), None)
        if one is None:
            return Called(name)
        is_custom = isinstance(one.tool, CustomTool)
        reader = InputReader(plain=one is self._forced) if is_custom else None
        return Called(one.tool.name, one.namespace.name if one.namespace else None, reader)

    def name_of(self, name: str, namespace: str | None) -> str:
        """Return the model's name for a tool."""
        for one in self.given:
            if one.namespace and one.namespace.name == namespace and one.tool.name == name:
                return one.name
        return name

    def hold(self, call: Generation, reading: Reading) -> None:
        """Constrain the answer to the grammar of the custom tool that must be called."""
        one = self._forced
        if one is None or one.grammar is None:
            return
        kind = "regex" if one.grammar.syntax == "regex" else "grammar"
        wanted: dict[str, Any] = {kind: one.grammar.definition}
        structure = StructuredOutputsParams(
            **wanted, reasoning=reading.reasoning_marks, field=f"{one.place}.format.definition"
        )
        call.params = call.params.replace(structured_outputs=structure)

    @property
    def _forced(self) -> ServedTool | None:
        """Return the tool that must be called, if it has a grammar: the answer is its input."""
        chosen = self.choice.function if isinstance(self.choice, ChosenTool) else None
        if chosen is None:
            return None
        return next((o for o in self.tools if o.name == chosen.name and o.grammar), None)


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
    for one in found.tools:
        if _is_only_shown(one, found.choice):
            note(request, Notice(f"{one.place}.format", _ONLY_SHOWN))
    return found


def _served(
    request: Request, raw: list[dict[str, Any]], place: str, namespace: Namespace | None = None
) -> Iterator[ServedTool]:
    """Yield the tools of a list, and of the namespaces in it."""
    for index, one in enumerate(raw):
        where = f"{place}[{index}]"
        flatten(one, "function")
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
    if found.choice == "required" and len(found.tools) == 1 and found.tools[0].grammar:
        found.choice = ChosenTool(ChosenFunction(found.tools[0].name))


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


def _is_only_shown(one: ServedTool, choice: Choice) -> bool:
    """Return whether the model sees a grammar that is not enforced."""
    enforced = one.grammar is None or _regex(one.grammar.syntax, one.grammar.definition) is not None
    return not enforced and not isinstance(choice, ChosenTool)


def _keys(one: ServedTool) -> set[tuple[str, str]]:
    """Return the types and names by which a choice may allow a tool."""
    tag = str(one.tool.__struct_config__.tag)
    own = {(tag, one.tool.name), (tag, one.name)}
    return own if one.namespace is None else {*own, ("namespace", one.namespace.name)}


def _function(tool: Tool) -> FunctionDefinition:
    if isinstance(tool, FunctionTool):
        return FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)
    grammar = tool.grammar
    if grammar is None:
        return FunctionDefinition(tool.name, tool.description, parameters(None))
    syntax = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
    note = f"The input is a text of this {syntax}:\n{grammar.definition}"
    description = f"{tool.description}\n\n{note}" if tool.description else note
    if (regex := _regex(grammar.syntax, grammar.definition)) is None:
        return FunctionDefinition(tool.name, description, parameters(None))
    return FunctionDefinition(tool.name, description, parameters(f"^(?:{regex})$"), strict=True)


@lru_cache(maxsize=64)
def _regex(syntax: str, definition: str) -> str | None:
    """Return a regular expression for a grammar's texts; None if there is none."""
    return definition if syntax == "regex" else regex_of(definition)
