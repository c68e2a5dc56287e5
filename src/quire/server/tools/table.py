"""The formats by name, and the choice of one by the chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.core.structured_outputs import ThinkingMarks
from quire.server.tools import formats
from quire.server.tools.formats import harmony
from quire.server.tools.gemma import BEGIN, END, QUOTE, gemma4
from quire.server.tools.markup import markup
from quire.server.tools.output import Output
from quire.server.tools.pythonic import pythonic
from quire.server.tools.stream import Input, Wait
from quire.system.records import dataclass
from quire.text.markup import MARKUP

Rule = Callable[[Input, Output], Wait]
Format = TypeVar("Format", "ToolFormat", "ReasoningFormat")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The text around the arguments of a call, if a schema constrains these.

    Attributes:
        trigger: begins a call anywhere in the text.
        head: text between it and the arguments; `{name}` stands for the function's name.
    """

    trigger: str
    head: str
    end: str

    @property
    def begin(self) -> str:
        """Return the text before the arguments."""
        return self.trigger + self.head


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls.

    Attributes:
        signs: a chat template that contains any of these uses this format.
        marks: marks of the format that may be control tokens.
        begins: marks of a call that end the reasoning if the model forgets to.
        id_length: characters of a call's id, if templates require a number.
        numbered_ids: the id is `functions.name:3`, counting all calls of the conversation.
        envelopes: texts around the JSON arguments of a call; `{index}` is the call's number.
        grammar: name of a grammar in `text.call_grammars`, in place of envelopes.
        typed: the functions' schemas distinguish strings from JSON.
    """

    rule: Rule
    signs: tuple[str, ...]
    marks: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    id_length: int | None = None
    numbered_ids: bool = False
    envelopes: tuple[Envelope, ...] = ()
    grammar: str | None = None
    typed: bool = False

    @property
    def unmarked(self) -> bool:
        """Return whether a call is a JSON object from its first character on."""
        return any(each.begin.startswith("{") for each in self.envelopes)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A format of reasoning between two marks before the answer; harmony has its own rule."""

    signs: tuple[str, ...]
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    limits: ThinkingMarks | None = None
    """Marks for counting its tokens, if different."""

    @property
    def marks(self) -> tuple[str, ...]:
        return self.begins + self.ends


def _begun(
    rule: Rule,
    marks: tuple[str, ...],
    *envelopes: Envelope,
    signs: tuple[str, ...] = (),
    **fields: Any,
) -> ToolFormat:
    """Return a format whose calls begin with the first mark, which is also the default sign."""
    return ToolFormat(rule, signs or marks[:1], marks, marks[:1], envelopes=envelopes, **fields)


def _marked(name: str, sign: str = "", marks: tuple[str, ...] = ()) -> ToolFormat:
    """Return a format of `text.markup`, recognized by `sign`, or by the mark around calls."""
    tags = MARKUP[name]
    begins, ends = (*tags.blocks,), (*tags.blocks.values(),)
    signs = (sign,) if sign else begins
    marks = (*begins, *ends, *marks)
    return ToolFormat(markup(tags), signs, marks, begins, grammar=name, typed=True)


_OBJECT = '{"name": "{name}", "arguments": '
_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALLS_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_KIMI, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENT, _KIMI_CALL_END = (
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
)  # fmt: skip
_HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>")

# Templates are checked in this order; a template may contain two signs, so the rarer comes first.
TOOL_PARSERS: dict[str, ToolFormat] = {
    "openai": ToolFormat(harmony, ("<|channel|>",), _HARMONY_MARKS, grammar="openai"),
    "gemma4": ToolFormat(
        gemma4, (f"{BEGIN}call:",), (BEGIN, END, QUOTE), (BEGIN,), grammar="gemma4"
    ),
    "seed_oss": _marked("seed_oss"),
    "minimax_m2": _marked("minimax_m2"),
    "deepseek_v32": _marked("deepseek_v32", "｜DSML｜", ("｜DSML｜",)),
    "glm45": _marked(
        "glm45", "<arg_key>", ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    ),
    "kimi_k2": _begun(
        formats.kimi_k2,
        (_KIMI, _KIMI_END, _KIMI_CALL, _KIMI_ARGUMENT, _KIMI_CALL_END),
        Envelope(
            _KIMI,
            f"{_KIMI_CALL}functions.{{name}}:{{index}}{_KIMI_ARGUMENT}",
            f"{_KIMI_CALL_END}{_KIMI_END}",
        ),
        numbered_ids=True,
    ),
    "minimax": _begun(
        formats.minimax,
        ("<tool_calls>", "</tool_calls>"),
        Envelope("<tool_calls>", f"\n{_OBJECT}", "}\n</tool_calls>"),
    ),
    "deepseek_v3": _begun(
        formats.deepseek_v3,
        (_CALLS, _CALL, _SEP),
        Envelope(_CALLS, f"{_CALL}function{_SEP}{{name}}\n```json\n", f"\n```{_CALLS_END}"),
        Envelope(_CALLS, f"{_CALL}{{name}}{_SEP}", _CALLS_END),
    ),
    "mistral": _begun(
        formats.mistral,
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        Envelope("[TOOL_CALLS]", f"[{_OBJECT}", "}]"),
        Envelope("[TOOL_CALLS]", "{name}[ARGS]", ""),
        Envelope("[TOOL_CALLS]", "{name}", ""),
        id_length=9,
    ),
    "granite": _begun(
        formats.granite,
        ("<|tool_call|>", "<tool_call>"),
        Envelope("<|tool_call|>", f"[{_OBJECT}", "}]"),
        Envelope("<tool_call>", f"[{_OBJECT}", "}]"),
        signs=("<|tool_call|>", "<|start_of_role|>"),
    ),
    "qwen3_coder": _marked("qwen3_coder", "<function="),
    "hermes": _begun(
        formats.hermes,
        ("<tool_call>", "</tool_call>"),
        Envelope("<tool_call>", f"\n{_OBJECT}", "}\n</tool_call>"),
    ),
    "pythonic": ToolFormat(
        pythonic,
        ("<|python_start|>", "[func_name1(params_name1"),
        ("<|python_start|>",),
        grammar="pythonic",
    ),
    "llama3_json": _begun(
        formats.llama3_json,
        ("<|python_tag|>",),
        Envelope('{"name": "', '{name}", "parameters": ', "}"),
        signs=("<|python_tag|>", '"parameters": dictionary of argument name'),
    ),
}
REASONING_PARSERS: dict[str, ReasoningFormat] = {
    "openai_gptoss": ReasoningFormat(
        ("<|channel|>",),
        (),
        (),
        ThinkingMarks(
            ("<|channel|>analysis<|message|>",),
            ("<|end|>",),
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ),
    "mistral": ReasoningFormat(("[THINK]",), ("[THINK]",), ("[/THINK]",)),
    "granite": ReasoningFormat(
        ("Here is my thought process:",),
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "gemma4": ReasoningFormat(("<|channel>",), ("<|channel>thought",), ("<channel|>",)),
    "seed_oss": ReasoningFormat(("<seed:think>",), ("<seed:think>",), ("</seed:think>",)),
    "qwen3": ReasoningFormat(("<think>", "</think>"), ("<think>",), ("</think>",)),
}
ALIASES = {
    "qwen3": "hermes",
    "qwen3_xml": "qwen3_coder",
    "deepseek_v31": "deepseek_v3",
    "deepseek": "deepseek_v3",
    "deepseek_v4": "deepseek_v32",
    "glm47": "glm45",
    "minimax_m1": "minimax",
    "harmony": "openai",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
}
_THINK = (
    "deepseek_r1", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "glm45", "glm47",
    "kimi_k2", "minimax", "minimax_m1", "minimax_m2",
)  # fmt: skip
REASONING_ALIASES = {**dict.fromkeys(_THINK, "qwen3"), "harmony": "openai_gptoss"}
NONE = "none"
"""Name for no format: the text is returned unchanged."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """The formats of a model's answers; None if it has none."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def speaks_harmony(self) -> bool:
        """Return whether the answer is in harmony's channels."""
        tools = self.tools is not None and self.tools.rule is harmony
        return tools or self.reasoning is REASONING_PARSERS["openai_gptoss"]

    @property
    def reads_all(self) -> bool:
        """Return whether answers need parsing even without tools."""
        return self.reasoning is not None or (self.tools is not None and self.tools.rule is harmony)

    def thinking_marks(self, *, calls: bool) -> ThinkingMarks | None:
        """Return the marks between which tokens count as reasoning; None without reasoning.

        Args:
            calls: the beginning of a tool call ends the reasoning, too.
        """
        known = self.reasoning
        if known is None:
            return None
        if known.limits is not None:
            return known.limits
        begins_call = self.tools.begins if self.tools is not None and calls else ()
        return ThinkingMarks(known.begins, known.ends + begins_call)

    def marks(self, *, tools: bool) -> set[str]:
        """Return marks that must appear in the text, although they may be control tokens."""
        marks = set(self.reasoning.marks) if self.reasoning else set()
        if self.tools is not None and (tools or self.tools.rule is harmony):
            marks.update(self.tools.marks)
        return marks


def choose_parsers(template: str | None, tools: str | None, reasoning: str | None) -> Parsers:
    """Return the formats named by `tools` and `reasoning`, else those of the chat template.

    Raises:
        ConfigError: a name is unknown.
    """
    return Parsers(
        _choose(TOOL_PARSERS, ALIASES, template, tools, "tool_call_parser"),
        _choose(REASONING_PARSERS, REASONING_ALIASES, template, reasoning, "reasoning_parser"),
    )


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
