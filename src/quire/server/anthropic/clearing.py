"""Shorten a conversation by its `context_management`."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator

from msgspec.structs import replace

from quire.server.anthropic import context
from quire.server.anthropic.blocks import ToolUseBlock
from quire.server.anthropic.turns import Turn
from quire.server.errors import invalid

Count = Callable[[list[Turn]], Awaitable[int]]
"""Returns the number of tokens in a prompt."""

_CLEARED = "[cleared to shorten the prompt]"
_COMPACT_TOKENS = 150_000
"""Default trigger of `compact`, in tokens."""


class Cleared:
    """A conversation after its edits.

    Attributes:
        applied: the edits that changed the prompt.
        original_tokens: tokens of the prompt before the edits, if an edit counted them.
    """

    def __init__(self, turns: list[Turn], count: Count) -> None:
        self.turns = turns
        self.applied: list[context.AppliedEdit] = []
        self.original_tokens: int | None = None
        self._count = count
        self._tokens: int | None = None

    async def apply(self, wanted: context.ContextManagement) -> None:
        """Edit the conversation.

        Raises:
            ApiError: 400 if it needs a summary.
        """
        for index, edit in enumerate(wanted.edits or ()):
            match edit:
                case context.ClearToolUses():
                    await self._clear_tool_uses(edit)
                case context.ClearThinking():
                    await self._clear_thinking(edit)
                case context.Compact():
                    limit = edit.trigger.value if edit.trigger else _COMPACT_TOKENS
                    if await self._num_tokens() > limit:
                        raise invalid(
                            f"The prompt has {await self._num_tokens()} tokens, more than {limit}, "
                            "and needs a summary. The server does not summarize; "
                            "the client must.",
                            f"context_management.edits[{index}]",
                        )

    async def _clear_tool_uses(self, edit: context.ClearToolUses) -> None:
        excluded = set(edit.exclude_tools or ())
        uses = [(place, call) for place, call in _uses(self.turns) if call.name not in excluded]
        keep = max(edit.keep.value, 0)
        oldest = uses[: len(uses) - keep] if len(uses) > keep else []
        if not oldest:
            return
        counted = edit.trigger.type == "tool_uses"
        reached = len(uses) if counted else await self._num_tokens()
        if reached <= edit.trigger.value:
            return
        inputs = edit.clear_tool_inputs
        turns, num_cleared = _copied(self.turns), 0
        for place, call in oldest:
            results = turns[place + 1].results
            if results[call.id] == _CLEARED:
                continue
            results[call.id] = _CLEARED
            num_cleared += 1
            if inputs is True or (isinstance(inputs, list) and call.name in inputs):
                turns[place].calls = [
                    replace(each, input={}) if each.id == call.id else each
                    for each in turns[place].calls
                ]
        least = edit.clear_at_least.value if edit.clear_at_least is not None else 1
        if (gone := await self._take(turns, least)) is not None:
            self.applied.append(
                context.AppliedEdit(context.CLEAR_TOOL_USES, gone, cleared_tool_uses=num_cleared)
            )

    async def _clear_thinking(self, edit: context.ClearThinking) -> None:
        keep = edit.keep
        if not isinstance(keep, context.ThinkingTurns) or keep.type == "all":
            return
        rounds = _thinking_rounds(self.turns)
        oldest = rounds[: len(rounds) - keep.value] if len(rounds) > keep.value else []
        if not oldest:
            return
        turns = _copied(self.turns)
        for places in oldest:
            for place in places:
                turns[place].thoughts = []
        if (gone := await self._take(turns, 0)) is not None:
            self.applied.append(
                context.AppliedEdit(
                    context.CLEAR_THINKING, gone, cleared_thinking_turns=len(oldest)
                )
            )

    async def _take(self, turns: list[Turn], least: int) -> int | None:
        """Replace the turns by shorter ones if that saves `least` tokens.

        Returns:
            The number of tokens saved; None if the turns were not replaced.
        """
        before, after = await self._num_tokens(), await self._count(turns)
        if before - after < least:
            return None
        self.turns, self._tokens = turns, after
        return before - after

    async def _num_tokens(self) -> int:
        if self._tokens is None:
            self._tokens = await self._count(self.turns)
            self.original_tokens = self._tokens
        return self._tokens


def _copied(turns: list[Turn]) -> list[Turn]:
    """Return copies of turns whose fields may be replaced; a deep copy would be slow."""
    return [dataclasses.replace(turn, results=dict(turn.results)) for turn in turns]


def _uses(turns: list[Turn]) -> Iterator[tuple[int, ToolUseBlock]]:
    """Yield each call with a result, after the index of its turn."""
    for place, turn in enumerate(turns[:-1]):
        for call in turn.calls:
            if call.id in turns[place + 1].results:
                yield place, call


def _thinking_rounds(turns: list[Turn]) -> list[list[int]]:
    """Return the indices of turns with thinking, grouped by the user's text before them."""
    rounds: list[list[int]] = [[]]
    for place, turn in enumerate(turns):
        if turn.role == "user" and turn.texts and rounds[-1]:
            rounds.append([])
        if turn.thoughts:
            rounds[-1].append(place)
    return [found for found in rounds if found]
