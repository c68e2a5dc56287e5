"""The types of `tools` and `tool_choice` in the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from quire.server.openai.protocol import Strict, Tools
from quire.server.rules import Rules, ignored

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
_OF_CALLERS: Rules = {
    "allowed_callers": ignored("The model itself is the only caller."),
    "defer_loading": ignored("The model sees every tool from the start."),
    "async": ignored("The client runs the tools, in any order."),
}


class FunctionTool(Strict, tag_field="type", tag="function", kw_only=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; None means no parameters."""
    strict: bool | None = None
    rules: ClassVar[Rules] = {
        **_OF_CALLERS,
        "output_schema": ignored("The model sees the function's output, not its schema."),
    }


class TextInput(Strict, tag_field="type", tag="text"):
    """Any text."""


class GrammarInput(Strict, tag_field="type", tag="grammar"):
    """Text that matches a grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Strict, tag_field="type", tag="custom", kw_only=True):
    """A tool that takes a text instead of arguments."""

    name: Name
    description: str | None = None
    format: TextInput | GrammarInput | None = None
    rules: ClassVar[Rules] = _OF_CALLERS

    @property
    def grammar(self) -> GrammarInput | None:
        return self.format if isinstance(self.format, GrammarInput) else None


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
