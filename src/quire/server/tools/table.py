"""The formats by name, and which one a chat template speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.server.tools import formats
from quire.server.tools.deltas import Delta
from quire.server.tools.harmony import harmony
from quire.server.tools.output import Output, ValueTypes
from quire.server.tools.pythonic import pythonic
from quire.server.tools.stream import Input, Wait, rest, space, starts, until

Rule = Callable[[Input, Output], Wait]
Format = TypeVar("Format", "ToolFormat", "ReasoningFormat")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What stands around the arguments of a call, where these are held to a schema.

    Attributes:
        trigger: begins a call, wherever it is written; `begin` begins with it.
        begin: `{name}` stands for the function's.
    """

    trigger: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How tool calls are written.

    Attributes:
        signs: a chat template with any of these speaks it.
        marks: what the text may hold that its tokenizer may take for control tokens.
        id_length: characters of a call's id, where templates insist on a number.
        envelopes: ways to write one call around its arguments in JSON.
        grammar: instead of them, that of `text.call_grammars`.
        typed: the functions' schemas tell texts from JSON.
    """

    rule: Rule
    signs: tuple[str, ...]
    marks: tuple[str, ...] = ()
    id_length: int | None = None
    envelopes: tuple[Envelope, ...] = ()
    grammar: str | None = None
    typed: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning before the answer, between two marks; harmony has its own rule."""

    signs: tuple[str, ...]
    begins: tuple[str, ...]
    ends: tuple[str, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        return self.begins + self.ends


_OBJECT = '{"name": "{name}", "arguments": '
_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALLS_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>")

# In the order in which a template is asked: of two signs that it may hold, the rarer comes first.
TOOL_PARSERS: dict[str, ToolFormat] = {
    "openai": ToolFormat(harmony, ("<|channel|>",), _HARMONY_MARKS, grammar="openai"),
    "deepseek_v3": ToolFormat(
        formats.deepseek_v3,
        (_CALLS,),
        (_CALLS, _CALL, _SEP),
        envelopes=(
            Envelope(
                _CALLS,
                f"{_CALLS}{_CALL}function{_SEP}{{name}}\n```json\n",
                f"\n```{_CALLS_END}",
            ),
            Envelope(_CALLS, f"{_CALLS}{_CALL}{{name}}{_SEP}", _CALLS_END),
        ),
    ),
    "mistral": ToolFormat(
        formats.mistral,
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        id_length=9,
        envelopes=(
            Envelope("[TOOL_CALLS]", f"[TOOL_CALLS][{_OBJECT}", "}]"),
            Envelope("[TOOL_CALLS]", "[TOOL_CALLS]{name}[ARGS]", ""),
            Envelope("[TOOL_CALLS]", "[TOOL_CALLS]{name}", ""),
        ),
    ),
    "granite": ToolFormat(
        formats.granite,
        ("<|tool_call|>", "<|start_of_role|>"),
        ("<|tool_call|>", "<tool_call>"),
        envelopes=(
            Envelope("<|tool_call|>", f"<|tool_call|>[{_OBJECT}", "}]"),
            Envelope("<tool_call>", f"<tool_call>[{_OBJECT}", "}]"),
        ),
    ),
    "qwen3_coder": ToolFormat(
        formats.qwen3_coder,
        ("<function=",),
        ("<tool_call>",),
        grammar="qwen3_coder",
        typed=True,
    ),
    "hermes": ToolFormat(
        formats.hermes,
        ("<tool_call>",),
        ("<tool_call>", "</tool_call>"),
        envelopes=(Envelope("<tool_call>", f"<tool_call>\n{_OBJECT}", "}\n</tool_call>"),),
    ),
    "pythonic": ToolFormat(
        pythonic,
        ("<|python_start|>", "[func_name1(params_name1"),
        ("<|python_start|>",),
        grammar="pythonic",
    ),
    "llama3_json": ToolFormat(
        formats.llama3_json,
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        ("<|python_tag|>",),
        envelopes=(Envelope('{"name": "', '{"name": "{name}", "parameters": ', "}"),),
    ),
}
REASONING_PARSERS: dict[str, ReasoningFormat] = {
    "openai_gptoss": ReasoningFormat(("<|channel|>",), (), ()),
    "mistral": ReasoningFormat(("[THINK]",), ("[THINK]",), ("[/THINK]",)),
    "granite": ReasoningFormat(
        ("Here is my thought process:",),
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "qwen3": ReasoningFormat(("<think>", "</think>"), ("<think>",), ("</think>",)),
}
ALIASES = {
    "qwen3": "hermes",
    "qwen3_xml": "qwen3_coder",
    "deepseek_v31": "deepseek_v3",
    "deepseek": "deepseek_v3",
    "harmony": "openai",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
}
REASONING_ALIASES = {"deepseek_r1": "qwen3", "deepseek_v3": "qwen3", "harmony": "openai_gptoss"}
NONE = "none"
"""Instead of a name: the text is left as it is."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """What reads a model's answers; None where there is nothing to read."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def reads_all(self) -> bool:
        """Whether there is something to read in every answer, tools or not."""
        return self.reasoning is not None or (self.tools is not None and self.tools.rule is harmony)

    def marks(self, *, tools: bool) -> set[str]:
        """What has to reach the text although it may be control tokens."""
        marks = set(self.reasoning.marks) if self.reasoning else set()
        if self.tools is not None and (tools or self.tools.rule is harmony):
            marks.update(self.tools.marks)
        return marks


def choose_parsers(template: str | None, tools: str | None, reasoning: str | None) -> Parsers:
    """The formats that `tools` and `reasoning` name, else those of the chat template.

    Raises:
        ConfigError: there is none of that name.
    """
    return Parsers(
        _choose(TOOL_PARSERS, ALIASES, template, tools, "tool_call_parser"),
        _choose(REASONING_PARSERS, REASONING_ALIASES, template, reasoning, "reasoning_parser"),
    )


class OutputParser:
    """Reads one answer, piece by piece.

    Args:
        calls: look for tool calls.
        inside: the prompt's end has begun the reasoning already.
        required: the text is a list of calls, as `tool_choice` "required" makes it.
        named: the text is the arguments of a call of this function.
        types: of the functions' parameters.
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
    ) -> None:
        self._source = Input()
        self._out = Output(self._source, types)
        if named is not None or required:
            rule = formats.required if named is None else _arguments_of(named)
            if parsers.reasoning is not None and parsers.reasoning.begins:
                rule = _after_reasoning(parsers.reasoning, rule, inside)
        else:
            rule = _rule(parsers, calls=calls, inside=inside)
        self._reading = rule(self._source, self._out)

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return self._out.num_calls

    def push(self, text: str) -> Delta:
        """What `text` adds."""
        self._source.add(text)
        next(self._reading, None)
        return self._out.take()

    def end(self) -> Delta:
        """What was held back, once no more comes."""
        self._source.ended = True
        for _ in self._reading:
            pass
        self._out.end()
        return self._out.take()


def _choose(
    known: Mapping[str, Format],
    aliases: Mapping[str, str],
    template: str | None,
    name: str | None,
    flag: str,
) -> Format | None:
    if name == NONE:
        return None
    if name is not None:
        found = known.get(aliases.get(name, name))
        if found is None:
            hint = did_you_mean(name, [*known, *aliases, NONE])
            raise ConfigError(f"{flag} is {name!r}; {hint}", param=flag)
        return found
    speaks = (f for f in known.values() if any(sign in (template or "") for sign in f.signs))
    return next(speaks, None)


def _rule(parsers: Parsers, *, calls: bool, inside: bool) -> Rule:
    wanted = parsers.tools if calls else None
    speaks_harmony = parsers.tools is not None and parsers.tools.rule is harmony
    if speaks_harmony or parsers.reasoning is REASONING_PARSERS["openai_gptoss"]:
        return harmony
    rule = wanted.rule if wanted else _content
    return _after_reasoning(parsers.reasoning, rule, inside) if parsers.reasoning else rule


def _after_reasoning(reasoning: ReasoningFormat, rule: Rule, inside: bool) -> Rule:
    def read(source: Input, out: Output) -> Wait:
        read: list[str] = []
        yield from space(source, read.append)
        begun = inside
        for mark in reasoning.begins:
            begun = (yield from starts(source, mark)) or begun
        if begun:
            yield from until(source, reasoning.ends, out.reasoning)
        else:
            out.content("".join(read))
        yield from rule(source, out)

    return read


def _content(source: Input, out: Output) -> Wait:
    yield from rest(source, out.content)


def _arguments_of(name: str) -> Rule:
    def read(source: Input, out: Output) -> Wait:
        yield from space(source)
        out.call(name)
        yield from rest(source, out.arguments)

    return read
