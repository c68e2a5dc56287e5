"""The types of `tools` and `tool_choice` in the Responses API."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from quire.server.openai.tool_types import CustomDefinition, FunctionDefinition
from quire.server.rules import Name, Rules, Strict, Tools, ignored

_OF_CALLERS: Rules = {
    "allowed_callers": ignored("The model itself is the only caller."),
    "defer_loading": ignored("The model sees every tool from the start."),
    "async": ignored("The client runs the tools, in any order."),
}


class FunctionTool(FunctionDefinition, tag_field="type", tag="function"):
    """A function that the model may call."""

    rules: ClassVar[Rules] = {
        **_OF_CALLERS,
        "output_schema": ignored("The model sees the function's output, not its schema."),
    }


class CustomTool(CustomDefinition, tag_field="type", tag="custom"):
    """A tool that takes a text instead of arguments."""

    rules: ClassVar[Rules] = _OF_CALLERS


Tool = FunctionTool | CustomTool


class Namespace(Strict, tag_field="type", tag="namespace", kw_only=True):
    """Tools under a common name; the model sees them one by one."""

    name: Name
    description: str | None = None
    tools: Tools[dict[str, Any]]


class NamedFunction(Strict, tag_field="type", tag="function"):
    """`tool_choice`: call this function."""

    name: str


class NamedCustom(Strict, tag_field="type", tag="custom"):
    """`tool_choice`: call this custom tool."""

    name: str


class AllowedTool(msgspec.Struct):
    """One of the `tools`, by its type and name; its other fields are ignored."""

    type: str
    name: str | None = None


class AllowedTools(Strict, tag_field="type", tag="allowed_tools"):
    """`tool_choice`: `mode`, among these of the `tools`; the model sees no others."""

    mode: Literal["auto", "required"]
    tools: Tools[AllowedTool]


ToolChoice = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedTools
