"""Every format: what is read of a text, however it is cut, and of texts that are none of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.server.tools.deltas import TextDelta
from quire.server.tools.parser import OutputParser
from quire.server.tools.table import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    Parsers,
    choose_parsers,
)
from quire.text.chat import render_chat
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.examples import examples

PARIS = {"city": "Paris", "days": 3}


@dataclass
class Answer:
    """What a text was read as; arguments as they are written."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read(parser: OutputParser, pieces: list[str]) -> Answer:
    answer = Answer()
    for delta in [*map(parser.push, pieces), parser.end()]:
        answer.content += delta.content
        answer.reasoning += delta.reasoning
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(answer.calls)
                answer.calls.append((call.name, ""))
            name, written = answer.calls[call.index]
            answer.calls[call.index] = (name, written + call.arguments)
    return answer


def parsed(answer: Answer) -> list[tuple[str, Any]]:
    return [(name, json.loads(written)) for name, written in answer.calls]


def tools(name: str) -> OutputParser:
    return OutputParser(choose_parsers(None, name, "none"), calls=True)


CALL = '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}'
OTHER = '{"name": "f", "arguments": {}}'
BOTH = [("weather", PARIS), ("f", {})]
PARAMETERS = '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}'
DEEPSEEK = "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>"
XML = """<tool_call>
<function=weather>
<parameter=city>
Paris
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>
<tool_call>
<function=f>
</function>
</tool_call>"""
GLM = """<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
</tool_call>
<tool_call>f
</tool_call>"""
INVOKES = """{0}
<{1}invoke name="weather">
<{1}parameter name="city"{2}>Paris</{1}parameter>
<{1}parameter name="days"{3}>3</{1}parameter>
</{1}invoke>
<{1}invoke name="f">
</{1}invoke>
{4}"""
MINIMAX = INVOKES.format("<minimax:tool_call>", "", "", "", "</minimax:tool_call>")
DSML = [
    INVOKES.format(
        f"<｜DSML｜{mark}>", "｜DSML｜", ' string="true"', ' string="false"', f"</｜DSML｜{mark}>"
    )
    for mark in ("function_calls", "tool_calls")
]
SEED = """<seed:tool_call>
<function=weather>
<parameter=city>Paris</parameter>
<parameter=days>3</parameter>
</function>
</seed:tool_call>
<seed:tool_call>
<function=f>
</function>
</seed:tool_call>"""
GEMMA = (
    '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
    "<|tool_call>call:f{}<tool_call|>"
)
NESTED = (
    '<|tool_call>call:f{a:<|"|>x "y" {}\n<|"|>,b:[1,-2.5,true,<|"|>]<|"|>],'
    "c:{k:null,n:None},d:{}}<tool_call|>"
)
NESTING = {"a": 'x "y" {}\n', "b": [1, -2.5, True, "]"], "c": {"k": None, "n": None}, "d": {}}
KIMI_CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
KIMI = (
    "<|tool_calls_section_begin|>"
    + KIMI_CALL.format("functions.weather:0", '{"city": "Paris", "days": 3}')
    + KIMI_CALL.format("functions.f:1", "{}")
    + "<|tool_calls_section_end|>"
)
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>'
    "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>"
)
EXAMPLES: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{OTHER}</tool_call>", BOTH, ""),
    ("hermes", f"I look.\n<tool_call>{CALL}</tool_call>", BOTH[:1], "I look."),
    ("hermes", f"<tool_call>{CALL}", BOTH[:1], ""),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "days": 3}, "name": "weather"}</tool_call>',
        BOTH[:1],
        "",
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', BOTH[1:], ""),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [("f", {"a": 1})],
        "",
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
        [("f", {"a": '</tool_call>"}'})],
        "",
    ),
    (
        "llama3_json",
        '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}',
        BOTH[:1],
        "",
    ),
    ("llama3_json", f"<|python_tag|>{PARAMETERS}; {OTHER}", BOTH, ""),
    ("llama3_json", f"I look. {PARAMETERS}; {OTHER} Done.", BOTH, "I look.Done."),
    ("llama3_json", f"Is {{x}} a set? {PARAMETERS}", BOTH[:1], "Is {x} a set?"),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {OTHER}]", BOTH, ""),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]f{}', BOTH, ""),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", BOTH[1:], ""),
    ("granite", f"<|tool_call|>[{CALL}, {OTHER}]", BOTH, ""),
    ("granite", f"<tool_call>[{CALL}]", BOTH[:1], ""),
    (
        "deepseek_v3",
        "Yes.<｜tool▁calls▁begin｜>"
        + DEEPSEEK.format(
            'function<｜tool▁sep｜>weather\n```json\n{"city": "Paris", "days": 3}\n```'
        )
        + "\n"
        + DEEPSEEK.format("function<｜tool▁sep｜>f\n```json\n{}\n```")
        + "<｜tool▁calls▁end｜>",
        BOTH,
        "Yes.",
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜>"
        + DEEPSEEK.format('weather<｜tool▁sep｜>{"city": "Paris", "days": 3}')
        + DEEPSEEK.format("f<｜tool▁sep｜>{}"),
        BOTH,
        "",
    ),
    ("qwen3_coder", XML, BOTH, ""),
    ("qwen3_coder", f"I look.\n{XML}\nDone.", BOTH, "I look.Done."),
    ("qwen3_coder", XML.replace("</parameter>\n", ""), BOTH, ""),
    ("qwen3_coder", XML.replace("</function>\n", ""), BOTH, ""),
    ("qwen3_coder", XML.replace("</parameter>\n", "").replace("</function>\n", ""), BOTH, ""),
    ("qwen3_coder", XML.replace("</tool_call>\n", "").replace("</function>", ""), BOTH, ""),
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>Paris<parameter=days>3</function></tool_call>",
        BOTH[:1],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>\n<b></function>\n</b>\n</parameter></function>",
        [("f", {"a": "<b></function>\n</b>"})],
        "",
    ),
    ("glm45", f"I look.\n{GLM}", BOTH, "I look."),
    ("glm45", GLM.replace("\n", ""), BOTH, ""),
    ("glm45", GLM.replace("</arg_value>", ""), BOTH, ""),
    ("glm47", GLM.replace("</tool_call>\n", ""), BOTH, ""),
    ("minimax_m2", f"I look.\n{MINIMAX}", BOTH, "I look."),
    ("minimax_m2", MINIMAX.replace("</parameter>", ""), BOTH, ""),
    ("minimax_m2", MINIMAX.replace("</invoke>\n", ""), BOTH, ""),
    (
        "minimax_m2",
        MINIMAX.replace(">Paris<", ">\nPa\n\nris\n<"),
        [("weather", {"city": "Pa\n\nris", "days": 3}), BOTH[1]],
        "",
    ),
    ("deepseek_v32", f"I look.\n\n{DSML[0]}", BOTH, "I look."),
    ("deepseek_v4", DSML[1], BOTH, ""),
    (
        "deepseek_v32",
        DSML[0].replace('string="false"', 'string="true"'),
        [("weather", {"city": "Paris", "days": "3"}), BOTH[1]],
        "",
    ),
    ("seed_oss", f"I look.\n{SEED}", BOTH, "I look."),
    ("seed_oss", SEED.replace("</parameter>", ""), BOTH, ""),
    ("gemma4", f"I look.{GEMMA}", BOTH, "I look."),
    ("gemma4", NESTED, [("f", NESTING)], ""),
    ("kimi_k2", f"I look.{KIMI}", BOTH, "I look."),
    ("kimi_k2", KIMI.replace("functions.", "").replace(":0<", "<"), BOTH, ""),
    ("minimax", f"I look.\n<tool_calls>\n{CALL}\n{OTHER}\n</tool_calls>", BOTH, "I look."),
    ("minimax_m1", f"<tool_calls>[{CALL}, {OTHER}]</tool_calls>", BOTH, ""),
    ("pythonic", "[weather(city='Paris', days=3), f()]", BOTH, ""),
    (
        "pythonic",
        r"""[f(a="x\n\"\u00e9'", b=[1, -2.5, True], c={'k': None,}, d=(1,))]""",
        [("f", {"a": "x\n\"é'", "b": [1, -2.5, True], "c": {"k": None}, "d": [1]})],
        "",
    ),
    ("openai", HARMONY, BOTH, ""),
    ("openai", "<|channel|>final<|message|>Hello", [], "Hello"),
]


@pytest.mark.parametrize(("name", "text", "calls", "content"), EXAMPLES)
def test_calls_are_found(name: str, text: str, calls: list[Any], content: str) -> None:
    answer = read(tools(name), [text])
    assert parsed(answer) == calls
    assert answer.content == content


NO_CALLS = [
    ("hermes", "A plain answer with < and <tool and {braces}."),
    ("hermes", "<tool_call>not json</tool_call> and on"),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "x": tr'),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", 'Here: {"name": "Ada", "age": 36} and {"name": "Bob"}'),
    ("llama3_json", 'No: {"name": "f", "parameters": {"a": 1}'),
    ("llama3_json", 'No: {"name": "f", "parameters": {a: 1}} and {"answer": {"b": [1, 2'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1}]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {\'a\': 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\\d"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x'),
    ("mistral", '[TOOL_CALLS] f{"a": tru}'),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a" 1}'),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a"}}]'),
    ("granite", '<|tool_call|> [ {"name": 3} ]'),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>" + DEEPSEEK.format("f<｜tool▁sep｜>{a}")),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
    ("kimi_k2", "<|tool_calls_section_begin|>" + KIMI_CALL.format("functions.f:0", '{"a":')),
    ("minimax", '<tool_calls>\n{"name": "f", "arguments": {]}\n</tool_calls>'),
    ("glm45", "<tool_call> and more"),
    ("glm45", f"<tool_call>{OTHER}</tool_call>"),
    ("minimax_m2", "<minimax:tool_call>\n<invoke>\n</minimax:tool_call>"),
    ("deepseek_v32", "<｜DSML｜function_calls> nothing"),
    ("seed_oss", "<function=f>\n</function>"),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x}<tool_call|>'),
    ("gemma4", "<|tool_call>call:f{a:1,,b:2}<tool_call|>"),
    ("gemma4", "<|tool_call>f{}<tool_call|> <|tool_call>call:{}"),
    ("qwen3_coder", "<tool_call>\nf\n</tool_call>"),
    ("qwen3_coder", "<function=a b"),
    ("mistral", "[TOOL_CALLS] nothing"),
    ("pythonic", "[1, 2, 3] are numbers"),
    ("pythonic", "[see the notes]"),
    ("qwen3_coder", "a <b> c"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    answer = read(tools(name), [text])
    assert answer.calls == []
    assert answer.content == text


ALL_TEXTS = [(name, text) for name, text, *_ in EXAMPLES] + NO_CALLS
MARKS = {mark for format_ in TOOL_PARSERS.values() for mark in format_.marks}
TAGS = """</tool_call> <function= <parameter= </function> </parameter> <think> </think> > "f">
<｜tool▁calls▁end｜> <invoke name= </invoke> </minimax:tool_call> </seed:tool_call> call:f{ a:
<｜DSML｜function_calls> <｜DSML｜invoke name= <｜DSML｜parameter name= </｜DSML｜invoke>"""
PIECES = '{"name": |"f"|, "arguments": |{|}|[|]|(|)|"|\'|\\|,|=|:| |1|f|True'
FRAGMENTS = sorted({*MARKS, *TAGS.split(), *PIECES.split("|"), "\n", "to=functions.f"})


def cuts(text: str, positions: list[int]) -> list[str]:
    ends = sorted({min(p, len(text)) for p in positions} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


@settings(max_examples=examples(80), deadline=None)
@given(example=st.sampled_from(ALL_TEXTS), positions=st.lists(st.integers(0, 300), max_size=40))
def test_any_cut_gives_the_same(example: tuple[str, str], positions: list[int]) -> None:
    name, text = example
    assert read(tools(name), cuts(text, positions)) == read(tools(name), [text])


@pytest.mark.parametrize(("name", "text"), ALL_TEXTS)
def test_every_cut_in_two_gives_the_same(name: str, text: str) -> None:
    whole = read(tools(name), [text])
    assert read(tools(name), list(text)) == whole
    for cut in range(1, len(text)):
        assert read(tools(name), [text[:cut], text[cut:]]) == whole, text[:cut]
    for pieces in ([text], list(text)):  # it is known where content stood
        parser = tools(name)
        found = [p for d in [*map(parser.push, pieces), parser.end()] for p in d.parts]
        for part in found:
            if isinstance(part, TextDelta):
                assert "".join(text[begin:end] for begin, end in part.spans) == part.text


@settings(max_examples=examples(120), deadline=None)
@given(
    name=st.sampled_from([*TOOL_PARSERS]),
    parts=st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    reasoning=st.sampled_from(["none", *REASONING_PARSERS]),
    inside=st.booleans(),
)
def test_any_text_is_read_whole_and_letter_by_letter_alike(
    name: str, parts: list[str], reasoning: str, inside: bool
) -> None:
    text = "".join(parts)
    parsers = choose_parsers(None, name, reasoning)

    def parser() -> OutputParser:
        return OutputParser(parsers, calls=True, inside=inside)

    whole = read(parser(), [text])
    assert read(parser(), list(text)) == whole
    assert read(parser(), parts) == whole


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("name", [*TOOL_PARSERS])
@pytest.mark.parametrize("unit", ["<", '{"name": "f", ', "[", " ", "f(", '"\\', "<tool_call>", "a"])
def test_time_is_linear(name: str, unit: str) -> None:
    """A text of thousands of pieces would take long if each looked at all before it."""
    parser = tools(name)
    for _ in range(3_000):
        parser.push(unit)
    parser.end()


@pytest.mark.parametrize("inside", [False, True])
def test_reasoning(inside: bool) -> None:
    parsers = choose_parsers("<think>", "hermes", None)
    text = f"Hm, 1 < 2.\n</think>\n\nYes.\n<tool_call>{OTHER}</tool_call>"
    text = text if inside else f"<think>\n{text}"
    for pieces in ([text], list(text)):
        answer = read(OutputParser(parsers, calls=True, inside=inside), pieces)
        assert answer == Answer("Yes.", "Hm, 1 < 2.", [("f", "{}")])


@pytest.mark.parametrize(
    ("name", "reasoning", "begin", "text"),
    [
        ("hermes", "qwen3", "<think>", f"<tool_call>{CALL}</tool_call>"),
        ("qwen3_coder", "qwen3", "<think>", XML),
        ("glm45", "glm45", "<think>", GLM),
        ("minimax_m2", "minimax_m2", "<think>", MINIMAX),
        ("kimi_k2", "kimi_k2", "<think>", KIMI),
        ("seed_oss", "seed_oss", "<seed:think>", SEED),
        ("gemma4", "gemma4", "<|channel>thought\n", GEMMA),
    ],
)
def test_a_call_ends_the_reasoning(name: str, reasoning: str, begin: str, text: str) -> None:
    parsers = choose_parsers(None, name, reasoning)
    for pieces in ([begin + "Hm.\n" + text], list(begin + "Hm.\n" + text)):
        answer = read(OutputParser(parsers, calls=True), pieces)
        assert (answer.reasoning, answer.content) == ("Hm.", "")
        assert parsed(answer) == BOTH[: len(answer.calls)] != []
        without = read(OutputParser(parsers), pieces)  # no tools were given
        assert (without.calls, without.content) == ([], "")


def test_a_long_call_is_streamed_and_a_short_one_held_back() -> None:
    parser = tools("hermes")
    begin = '<tool_call>{"name": "f", "arguments": {"a": "'
    assert parser.push(begin + "x" * 900).calls == []
    [call] = parser.push("x" * 900).calls
    assert (call.name, len(call.arguments)) == ("f", 1800 + len('{"a": "'))
    [call] = parser.push("y").calls
    assert (call.name, call.arguments) == (None, "y")
    broken = parser.push('" oops</tool_call> So.')
    assert broken.calls[0].arguments == '" oops'
    assert broken.content == "So."


def test_a_call_has_the_models_own_id() -> None:
    delta = tools("kimi_k2").push(KIMI)
    assert [call.id for call in delta.calls] == ["functions.weather:0", "functions.f:1"]


def test_an_answer_without_reasoning_is_content() -> None:
    parsers = choose_parsers("<think>", None, None)
    assert read(OutputParser(parsers), ["\nHello <think>"]) == Answer("\nHello <think>")


def test_harmony_reasons() -> None:
    assert read(tools("openai"), [HARMONY]).reasoning == "Hm."


def test_required_and_named() -> None:
    text = f'[{PARAMETERS}, {{"name": "f", "parameters": {{}}}}]'
    assert parsed(read(OutputParser(Parsers(), required=True), list(text))) == BOTH
    assert read(OutputParser(Parsers(), named="f"), ['{"a"', ": 1}"]).calls == [("f", '{"a": 1}')]


def test_a_required_call_that_is_cut_off() -> None:
    """Its text is no content, with or without calls before it."""
    for text in ("[", '[{"na', '[{"name": "f"', f"[{PARAMETERS}, ", f'[{PARAMETERS}, {{"name"'):
        answer = read(OutputParser(Parsers(), required=True), [text])
        assert answer.content == ""
        assert len(answer.calls) == text.count(PARAMETERS)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… <tool_call> {{ tools }}", "hermes"),
        ("<tool_call><function=", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|start_of_role|> <tool_call>", "granite"),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
        ("<|channel|>", "openai"),
        ("[func_name1(params_name1=", "pythonic"),
        ("<tool_call>{function-name}\n<arg_key>", "glm45"),
        ("'<minimax:tool_call>' <invoke name=", "minimax_m2"),
        ("<tool_calls>", "minimax"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("{%- set dsml_token = '｜DSML｜' -%} <function_calls>", "deepseek_v32"),
        ("'<|tool_call>call:' <|channel>", "gemma4"),
        ("<seed:tool_call> <function=", "seed_oss"),
        ("nothing", None),
    ],
)
def test_the_template_tells(template: str, name: str | None) -> None:
    assert choose_parsers(template, None, None).tools == (name and TOOL_PARSERS[name])
    assert choose_parsers(template, "none", None).tools is None


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<seed:think>", "seed_oss"),
        ("'<|channel>' <channel|>", "gemma4"),
        ("<|channel|>", "openai_gptoss"),
        ("]~b]ai <think>", "qwen3"),
    ],
)
def test_the_template_tells_of_reasoning(template: str, name: str) -> None:
    assert choose_parsers(template, None, None).reasoning == REASONING_PARSERS[name]


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="did you mean hermes"):
        choose_parsers(None, "hermess", None)


def test_the_shared_templates(shared_dir: Path) -> None:
    """Qwen 2.5's speaks of tools, and renders them with calls and answers; the others do not."""
    found = {
        file.stem: choose_parsers(file.read_text(), None, None).tools
        for file in (shared_dir / "templates").glob("*.jinja")
    }
    assert found.pop("qwen2.5-instruct") is TOOL_PARSERS["hermes"]
    assert set(found.values()) == {None}
    source = (shared_dir / "templates" / "qwen2.5-instruct.jinja").read_text()
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": PARIS}}
    text = render_chat(
        DummyTokenizer(300),
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        ],
        chat_template=source,
        tools=[{"type": "function", "function": {"name": "weather"}}],
    ).text
    assert '{"type": "function", "function": {"name": "weather"}}' in text
    assert "<tool_response>\nsunny\n</tool_response>" in text
    said = text[text.index("<|im_start|>assistant") : text.index("<tool_response>")]
    assert parsed(read(tools("hermes"), [said])) == BOTH[:1]
