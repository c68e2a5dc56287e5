"""The types of `tools` and `tool_choice` in chats."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from quire.server.openai import elsewhere
from quire.server.rules import Name, Rules, Strict, Tools


class FunctionDefinition(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; None means no parameters."""
    strict: bool | None = None
    """Arguments must follow the schema; see `server.openai.tools`."""


class ToolDefinition(Strict, tag_field="type", tag="function"):
    function: FunctionDefinition

    rules: ClassVar[Rules] = elsewhere.CACHED


class TextInput(Strict, tag_field="type", tag="text"):
    """Any text."""


class GrammarInput(Strict, tag_field="type", tag="grammar"):
    """Text that matches a grammar. In chats these fields are in an object `grammar`."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomDefinition(Strict, kw_only=True):
    """A tool that takes a text instead of arguments."""

    name: Name
    description: str | None = None
    format: TextInput | GrammarInput | None = None

    @property
    def grammar(self) -> GrammarInput | None:
        return self.format if isinstance(self.format, GrammarInput) else None


class CustomToolDefinition(Strict, tag_field="type", tag="custom"):
    custom: CustomDefinition

    rules: ClassVar[Rules] = elsewhere.CACHED


ChatTool = ToolDefinition | CustomToolDefinition


class ChosenFunction(Strict):
    name: str


class NamedTool(Strict):
    function: ChosenFunction
    type: Literal["function"] = "function"


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Tools[NamedTool]


class ChosenTool(Strict):
    """`tool_choice`: call this function, or only the allowed ones."""

    function: ChosenFunction | None = None
    type: Literal["function", "allowed_tools"] = "function"
    allowed_tools: AllowedTools | None = None
