"""`strict` with `tool_choice` auto, in every format: what the grammar lets through is read as calls
of functions that are there, with arguments of their schemas. Random tokens under the mask, with
marks that are control tokens and with marks that are spelled."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.server.openai.calls import structure_of_calls
from quire.server.openai.protocol import ChatMessage, ChatRequest
from quire.server.openai.tool_types import FunctionDefinition, ToolDefinition
from quire.server.openai.tools import Reading, read_tools
from quire.server.tools.parser import OutputParser
from quire.server.tools.table import TOOL_PARSERS, choose_parsers
from quire.text.grammar import new_matcher
from quire.text.json_types import ALL, allowed_types
from quire.text.string_formats import FORMATS
from quire.text.tokenizers import vocabulary
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tokenizers.vocabulary import matcher_tokenizer, special_tokens
from tests.matching import allowed, takes
from tests.unit.server.tools.test_formats import Answer, read
from tests.unit.server.tools.written import written_call
from tests.unit.text.vocabularies import byte_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"enum": ["a/b", 2, None]}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        "Kind": {"enum": ["new", "o\"l'd"], "type": "string"},
    },
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "3", None], "title": "Unit"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "when": {"type": "string", "format": "date"},
        "place": {"$ref": "#/$defs/Place"},
        "kind": {"allOf": [{"$ref": "#/$defs/Kind"}], "description": "Which."},
    },
    "required": ["city", "days", "place"],
    "additionalProperties": False,
}
FUNCTIONS = [
    FunctionDefinition("weather", parameters=SCHEMA, strict=True),
    FunctionDefinition("weather_of", strict=True),
    FunctionDefinition("free", parameters={"type": "object"}),
]
SCHEMAS = {"weather": SCHEMA, "weather_of": {"maxProperties": 0}, "free": {}}
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
DSML, DSML_END = "<｜DSML｜tool_calls>\n", "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
BEGINS = {
    "openai": ("<|channel|>commentary to=functions.", " to=functions."),
    "pythonic": (f"[{FUNCTIONS[0].name}(", " [\nfree(", "[weather_of("),
    "gemma4": ("<|tool_call>",),
    "qwen3_coder": ("<tool_call>", "<function="),
    "seed_oss": ("<seed:tool_call>", "<seed:tool_call>\n<function=weather_of"),
    "minimax_m2": ("<minimax:tool_call>",),
    "deepseek_v32": ("<｜DSML｜function_calls>", f'{DSML}<｜DSML｜invoke name="weather_of'),
    "glm45": ("<tool_call>",),
    "kimi_k2": ("<|tool_calls_section_begin|>",),
    "minimax": ("<tool_calls>",),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>",),
    "mistral": ("[TOOL_CALLS]",),
    "granite": ("<|tool_call|>", "<tool_call>"),
    "hermes": ("<tool_call>",),
    "llama3_json": ('{"name": "',),
}
CLOSING = frozenset(b"\"'})],>\n<")
TEXT_ENDS = {
    "qwen3_coder": "\n</parameter>\n",
    "seed_oss": "</parameter>\n",
    "minimax_m2": "</parameter>\n",
    "deepseek_v32": "</｜DSML｜parameter>\n",
    "glm45": "</arg_value>\n",
    "gemma4": '<|"|>',
}
ENDLESS = ("minimax_m2", "deepseek_v32")
"""Which may call and call before their mark ends."""
TEXT_END = TEXT_ENDS["qwen3_coder"]
"""What no random walk writes."""
EOS = "</s>"


@cache
def tokenizer(name: str, *, control: bool) -> Tokenizer:
    """Bytes, and the format's marks if they are control tokens."""
    return byte_tokenizer("<s>", EOS, *(TOOL_PARSERS[name].marks if control else ()))


def request(functions: list[FunctionDefinition]) -> ChatRequest:
    tools = [ToolDefinition(function) for function in functions]
    return ChatRequest(messages=[ChatMessage("user", "Hi")], tools=tools)


def reading_of(name: str, functions: list[FunctionDefinition]) -> Reading:
    return read_tools(request(functions), choose_parsers(None, name, "none"))


def structure(name: str, functions: list[FunctionDefinition]) -> StructuredOutputsParams:
    found = structure_of_calls(functions, reading_of(name, functions))
    assert found is not None
    return found


@cache
def matcher_of(name: str, *, control: bool) -> LLMatcher:
    """The grammar of `FUNCTIONS`, to be copied."""
    vocabulary = tokenizer(name, control=control)
    eos = (vocabulary.encode(EOS, add_special_tokens=False)[0],)
    size = 256 + 2 + len(TOOL_PARSERS[name].marks)
    return new_matcher(
        matcher_tokenizer(vocabulary, size, eos),
        structure(name, FUNCTIONS),
        special_tokens(vocabulary, eos),
    )


def generated(name: str, begin: str, random: Random, *, control: bool) -> str | None:
    """A text that begins so, and ends as soon as it may; None if it has not ended long after."""
    vocabulary = tokenizer(name, control=control)
    matcher = matcher_of(name, control=control).deep_copy()
    tokens = vocabulary.encode(begin, add_special_tokens=False)
    assert matcher.consume_tokens(tokens)
    while not matcher.is_accepting():
        if name in ENDLESS and len(tokens) > 2000:
            return None
        assert len(tokens) < 3000
        end = vocabulary.encode(TEXT_ENDS.get(name, TEXT_END), add_special_tokens=False)
        if random.random() < 0.1 and matcher.validate_tokens(end) == len(end):
            assert matcher.consume_tokens(end)
            tokens += end
            continue
        following = allowed(matcher)
        closing = [token for token in following if token in CLOSING or token > 255]
        chosen = random.choice(closing if closing and random.random() < 0.6 else following)
        assert matcher.consume_token(chosen)
        tokens.append(chosen)
    return vocabulary.decode(tokens, skip_special_tokens=False)


def answer(name: str, text: str) -> Answer:
    reading = reading_of(name, FUNCTIONS)
    parser = OutputParser(reading.parsers, calls=True, types=reading.types)
    return read(parser, [text])


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_what_is_let_through_is_a_call_of_its_schema(name: str, control: bool) -> None:
    called = set()
    for seed in range(12):
        if called == set(SCHEMAS):
            break
        for begin in BEGINS[name]:
            text = generated(name, begin, Random(seed), control=control)
            if text is None:
                continue
            found = answer(name, text)
            assert found.content == "", text
            assert found.calls, text
            for function, arguments in found.calls:
                VALIDATORS[function].validate(json.loads(arguments))
                called.add(function)
    assert called == set(SCHEMAS)


def may_follow(name: str, text: str) -> bool:
    """Whether the text may be generated, and may end there."""
    vocabulary = tokenizer(name, control=False)
    eos = (vocabulary.encode(EOS, add_special_tokens=False)[0],)
    made = matcher_tokenizer(vocabulary, 258, eos)
    matcher = new_matcher(made, structure(name, FUNCTIONS))
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


SEED, SEED_END = "<seed:tool_call>\n", "\n</function>\n</seed:tool_call>"
MINIMAX, MINIMAX_END = "<minimax:tool_call>\n", "\n</invoke>\n</minimax:tool_call>"
DSML_TEXT = '<｜DSML｜parameter name="a" string="true">3</｜DSML｜parameter>\n'
DSML_LIST = '<｜DSML｜parameter name="b" string="false">[3]</｜DSML｜parameter>\n'
FREE = {
    "pythonic": ["Hello", "[1, 2] are f(x)", "[see the notes]", " [free()] and on", "(a) [b"],
    "qwen3_coder": ["a <b> c", "See.\n<function=free>\n</function>\n</tool_call> So."],
    "glm45": ["a <b> c", "See.\n<tool_call>free\n</tool_call> So."],
    "seed_oss": [
        "<function=nope>",
        "<seed:tool_call>\n<function=free>\n</function>\n</seed:tool_call>",
    ],
    "minimax_m2": [
        '<invoke name="nope">',
        f'{MINIMAX}<invoke name="free">\n</invoke>\n<invoke name="weather_of">{MINIMAX_END}',
    ],
    "deepseek_v32": [
        f'{DSML}<｜DSML｜invoke name="free">\n{DSML_TEXT}{DSML_LIST}{DSML_END}',
    ],
    "gemma4": [
        "call:nope{}",
        'So.<|tool_call>call:free{a:[1,<|"|>]<|"|>],b:{c:true}}<tool_call|>',
    ],
    "openai": [
        "<|channel|>final<|message|>Hello",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        " to=functions.free<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
    ],
}
NEVER = {
    "pythonic": ["[nope()]", "[ nope()]", "\n\n\n\n[weather()]", "[weather_of(a=1)]"],
    "qwen3_coder": [
        "<tool_call>x",
        "<function=nope>\n</function>",
        "<function=weather>\n</function>",
    ],
    "glm45": ["<tool_call>x", "<tool_call>nope\n</tool_call>", "<tool_call>weather\n</tool_call>"],
    "seed_oss": [
        "<seed:tool_call>x",
        f"{SEED}<function=nope>{SEED_END}",
        f"{SEED}<function=free>\n<parameter=a>1<parameter=b>2</parameter>{SEED_END}",
    ],
    "minimax_m2": [
        f'{MINIMAX}<invoke name="weather">{MINIMAX_END}',
    ],
    "deepseek_v32": [
        "<｜DSML｜function_calls>x",
        f'{DSML}<｜DSML｜invoke name="weather_of">\n{DSML_LIST}{DSML_END}',
        f'{DSML}<｜DSML｜invoke name="free">\n{DSML_LIST}'.replace("[3]", "x"),
    ],
    "gemma4": [
        "<|tool_call>x",
        "<|tool_call>call:nope{}<tool_call|>",
        "<|tool_call>call:weather{}<tool_call|>",
        "<|tool_call>call:weather_of{a:1}<tool_call|>",
    ],
    "openai": [
        "<|channel|>commentary to=functions.nope<|message|>{}",
        "<|channel|>final to=functions.weather<|message|>{}",
        "<|channel|>commentary to=functions.weather<|message|>{}",
    ],
}


@pytest.mark.parametrize("name", FREE)
def test_text_is_free_and_calls_are_not(name: str) -> None:
    assert [may_follow(name, text) for text in FREE[name]] == [True] * len(FREE[name])
    assert [may_follow(name, text) for text in NEVER[name]] == [False] * len(NEVER[name])


def test_texts_without_quotes_have_their_format(shared_dir: Path) -> None:
    """What JSON-Schema-Test-Suite calls invalid is not written, and all but what is rare can be."""
    vocabulary = tokenizer("qwen3_coder", control=False)
    made = matcher_tokenizer(vocabulary, 258, vocabulary.encode(EOS, add_special_tokens=False)[:1])
    refused = []
    for name in FORMATS:
        file = shared_dir / "json-schema" / "draft7" / "optional" / "format" / f"{name}.json"
        if not file.is_file():
            continue
        schema = {"type": "string", "format": name}
        function = FunctionDefinition(
            "f", parameters={"properties": {"a": schema}, "required": ["a"]}, strict=True
        )
        matcher = new_matcher(made, structure("qwen3_coder", [function]))
        for group in json.loads(file.read_text()):
            for test in group["tests"]:
                if not isinstance(test["data"], str) or "</parameter>" in test["data"]:
                    continue
                call = f"<function=f>\n<parameter=a>\n{test['data']}{TEXT_END}</function>"
                tokens = list(call.encode())
                fits = matcher.validate_tokens(tokens) == len(tokens)
                assert not fits or test["valid"], (name, test)
                if test["valid"] and not fits:
                    refused.append((name, test["data"]))
    rare = ("23:59:60", "1998-12-31T", "1963-06-19t", "08:30:06z", "1::d6:192", "1:2::192", "xn--")
    assert [text for _, text in refused if ":60" not in text and not text.startswith(rare)] == []


@pytest.mark.parametrize(
    ("name", "schema", "word"),
    [
        ("qwen3_coder", {"properties": {"a": {"type": "string", "format": "regex"}}}, "format"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "format": 1}}}, "format"),
        (
            "qwen3_coder",
            {"properties": {"a": {"type": ["string", "array"]}}},
            "a text or something",
        ),
        ("qwen3_coder", {"properties": {"a>b": {}}}, "a>b"),
        ("glm45", {"properties": {"a<b": {}}}, "a<b"),
        ("gemma4", {"properties": {"a:b": {}}}, "a:b"),
        ("gemma4", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "not held to"),
        ("pythonic", {"properties": {"a b": {}}}, "a b"),
        ("pythonic", {"anyOf": [{}, {}]}, "anyOf"),
        ("pythonic", {"required": ["x"]}, "x"),
        ("pythonic", {"properties": [1]}, "properties"),
        ("pythonic", {"properties": {"a": {}}, "required": [{}]}, "required"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": 1}}}, "pattern"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "maxLength": "2"}}}, "maxLength"),
        ("pythonic", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ("openai", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
    ],
)
def test_what_arguments_are_not_held_to_is_refused(
    name: str, schema: dict[str, Any], word: str
) -> None:
    function = FunctionDefinition("f", parameters={"type": "object", **schema}, strict=True)
    with pytest.raises(InvalidRequestError, match=word):
        new_matcher(vocabulary.byte_tokenizer(), structure(name, [function]))


def test_types_are_told_of_any_schema() -> None:
    again = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}}}
    assert allowed_types({"$ref": "#/$defs/A"}, again) == ALL
    assert allowed_types({"$ref": "#/$defs/none"}, again) == frozenset()
    listed = {"anyOf": [{"type": "null"}, {"type": "string"}]}
    assert allowed_types({"$ref": "#/anyOf/1"}, listed) == {"string"}
    assert allowed_types({"anyOf": [{"type": ["null", "number"]}, {"minLength": 1}]}, {}) == {
        "null",
        "number",
        "integer",
        "string",
    }
    assert allowed_types({"oneOf": [{"const": 1.5}, {"enum": [[], {}]}]}, {}) == {
        "number",
        "array",
        "object",
    }


@pytest.mark.parametrize("index", ["²", "9" * 5000, "01"])
def test_a_reference_to_no_item_of_a_list_has_no_types(index: str) -> None:
    root = {"anyOf": [{"type": "null"}, {"type": "string"}]}
    assert allowed_types({"$ref": f"#/anyOf/{index}"}, root) == frozenset()


def test_a_parameters_type_tells_text_from_json() -> None:
    """Where the schema wants a text, a number is one."""
    written = "<function=weather><parameter={}>\n{}\n</parameter></function>"
    for key, text, value in [
        ("zip", "12345", "12345"),
        ("city", '"Rio"', '"Rio"'),
        ("unit", "3", "3"),
        ("note", "null", None),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("other", "3", 3),
    ]:
        [(_, arguments)] = answer("qwen3_coder", written.format(key, text)).calls
        assert json.loads(arguments) == {key: value}


HM = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


@pytest.mark.parametrize("name", TOOL_PARSERS)
@pytest.mark.parametrize("control", [False, True])
def test_json_or_calls_and_nothing_else(name: str, control: bool) -> None:
    """Where the text has a schema, and there are tools that need not be called."""
    free = [FUNCTIONS[2]]
    text = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"const": 12}}})
    found = structure_of_calls(free, reading_of(name, FUNCTIONS[2:]), text)
    assert found is not None
    vocabulary = tokenizer(name, control=control)
    eos = (vocabulary.encode(EOS, add_special_tokens=False)[0],)
    size = 256 + 2 + len(TOOL_PARSERS[name].marks)
    specials = special_tokens(vocabulary, eos)

    def accepted(written: str) -> bool:
        matcher = new_matcher(matcher_tokenizer(vocabulary, size, eos), found, specials)
        return takes(matcher, vocabulary.encode(written, add_special_tokens=False))

    call = written_call(name, "free", {"b": 1})
    assert accepted('{"a": 12}')
    assert accepted(call)
    if name == "openai":
        assert accepted(f"{HM}{call}<|call|><|start|>assistant{call}")
        assert accepted(HM + '<|channel|>final<|message|>{"a": 12}')
        assert not accepted(HM + "<|channel|>final<|message|>So.")
    elif name not in ("pythonic", "llama3_json"):
        assert accepted(f"{call}\n{call}")
    for wrong in ('{"a": 13}', f"So: {call}", f'{call}{{"a": 12}}', f"{call} So.", "12", ""):
        assert not accepted(wrong), wrong
