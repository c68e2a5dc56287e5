"""Parse one answer into reasoning, content and tool calls, by the formats of its model."""

from __future__ import annotations

from collections.abc import Sequence

from quire.server.tools import formats
from quire.server.tools.call_object import call_object
from quire.server.tools.deltas import Delta
from quire.server.tools.formats import harmony
from quire.server.tools.output import Output, ValueTypes
from quire.server.tools.stream import Input, Wait, rest, space, starts, until
from quire.server.tools.table import Parsers, ReasoningFormat, Rule


class OutputParser:
    """Parses one answer, piece by piece.

    Args:
        calls: look for tool calls.
        inside: the prompt's end has already begun the reasoning.
        required: the text is a list of calls, because `tool_choice` is "required".
        named: the text is the arguments of a call to this function.
        types: types of the functions' parameters.
        either: the text is JSON, or only calls.
    """

    def __init__(
        self,
        parsers: Parsers,
        *,
        calls: bool = False,
        inside: bool = False,
        required: bool = False,
        named: str | None = None,
        types: ValueTypes | None = None,
        either: bool = False,
    ) -> None:
        self._source = Input()
        self._out = Output(self._source, types)
        if named is not None or required:
            rule = formats.required if named is None else _arguments_of(named)
            if parsers.reasoning is not None and parsers.reasoning.begins:
                rule = _after_reasoning(parsers.reasoning, rule, inside)
        else:
            rule = _rule(parsers, calls=calls, inside=inside, either=either)
        self._reading = rule(self._source, self._out)

    @property
    def num_calls(self) -> int:
        """Return the number of tool calls so far."""
        return self._out.num_calls

    def push(self, text: str) -> Delta:
        """Return the parts that `text` adds."""
        self._source.add(text)
        next(self._reading, None)
        return self._out.take()

    def end(self) -> Delta:
        """End the text, and return the parts that were held back."""
        self._source.ended = True
        for _ in self._reading:
            pass
        self._out.end()
        return self._out.take()


def _rule(parsers: Parsers, *, calls: bool, inside: bool, either: bool) -> Rule:
    wanted = parsers.tools if calls else None
    if parsers.speaks_harmony:
        return harmony
    rule = wanted.rule if wanted else _content
    if wanted and either:
        rule = _object_or(rule, unmarked=wanted.unmarked)
    if parsers.reasoning is None:
        return rule
    return _after_reasoning(parsers.reasoning, rule, inside, wanted.begins if wanted else ())


def _after_reasoning(
    reasoning: ReasoningFormat, rule: Rule, inside: bool, calls: Sequence[str] = ()
) -> Rule:
    """Return a rule for reasoning, then `rule`. A mark of `calls` ends the reasoning, too."""

    def read(source: Input, out: Output) -> Wait:
        source.hold()
        yield from space(source)
        begun = inside
        for mark in reasoning.begins:
            begun = (yield from starts(source, mark)) or begun
        held = source.release()
        if begun:
            yield from until(source, reasoning.ends, out.reasoning, left=calls)
        else:
            out.content(held)
        yield from rule(source, out)

    return read


def _object_or(rule: Rule, *, unmarked: bool) -> Rule:
    """Return a rule for an object that is the whole content, and `rule` for other text.

    Args:
        unmarked: the object may be a call.
    """

    def read(source: Input, out: Output) -> Wait:
        source.hold()
        is_object = (yield from space(source)) == "{"
        if is_object and unmarked:
            is_object = not (yield from call_object(source, out, bare=False))
        out.content(source.release())
        yield from (rest(source, out.content) if is_object else rule(source, out))

    return read


def _content(source: Input, out: Output) -> Wait:
    yield from rest(source, out.content)


def _arguments_of(name: str) -> Rule:
    def read(source: Input, out: Output) -> Wait:
        yield from space(source)
        out.call(name)
        yield from rest(source, out.arguments)

    return read
