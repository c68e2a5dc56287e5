"""The types of `context_management` in requests and answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.rules import Messages, Strict

CLEAR_TOOL_USES = "clear_tool_uses_20250919"
CLEAR_THINKING = "clear_thinking_20251015"


class Limit(Strict):
    """A number of input tokens, or of tool uses."""

    type: Literal["input_tokens", "tool_uses"]
    value: int


class ThinkingTurns(Strict):
    type: Literal["thinking_turns", "all"]
    value: int = 1


class ClearToolUses(Strict, tag_field="type", tag=CLEAR_TOOL_USES, kw_only=True):
    """Beyond the trigger, clear the results of all but the latest calls."""

    trigger: Limit = msgspec.field(default_factory=lambda: Limit("input_tokens", 100_000))
    keep: Limit = msgspec.field(default_factory=lambda: Limit("tool_uses", 3))
    clear_at_least: Limit | None = None
    """Clear nothing if that would save fewer input tokens."""
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None
    """Clear the inputs of the calls, too, or only of the named tools."""


class ClearThinking(Strict, tag_field="type", tag=CLEAR_THINKING, kw_only=True):
    """Clear the thinking of the oldest turns."""

    keep: Literal["all"] | ThinkingTurns = msgspec.field(
        default_factory=lambda: ThinkingTurns("thinking_turns")
    )


class Compact(Strict, tag_field="type", tag="compact_20260112", kw_only=True):
    """Summarize a long conversation. Not supported: an error beyond the trigger."""

    trigger: Limit | None = None
    instructions: Any = None
    pause_after_compaction: Any = None


class ContextManagement(Strict):
    edits: Messages[ClearToolUses | ClearThinking | Compact] | None = None


class AppliedEdit(msgspec.Struct, omit_defaults=True):
    """One edit that changed the prompt."""

    type: str
    cleared_input_tokens: int
    cleared_tool_uses: int | None = None
    cleared_thinking_turns: int | None = None
