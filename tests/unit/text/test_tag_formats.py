"""xgrammar's formats of structural tags: what each accepts, and which are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.tag_formats import FormattedTag
from quire.text.tag_writer import write_format
from quire.text.tokenizers.vocabulary import FIRST_SPECIAL, byte_tokenizer
from tests.matching import takes

BYTES = byte_tokenizer(2)
CALL, END = "<|call|>", "<|end|>"
SPECIALS = {CALL: FIRST_SPECIAL, END: FIRST_SPECIAL + 1}
Form = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON: Form = {"type": "json_schema", "json_schema": SCHEMA}
TEXT: Form = {"type": "any_text"}
WORD: Form = {"type": "regex", "pattern": "[a-z]+"}


def const(value: str) -> Form:
    return {"type": "const_string", "value": value}


def sequence(*elements: Form) -> Form:
    return {"type": "sequence", "elements": [*elements]}


def either(*elements: Form) -> Form:
    return {"type": "or", "elements": [*elements]}


def tag(begin: str | Form, content: Form, end: str | Form | list[str]) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(tags: list[Form], *triggers: str, **fields: Any) -> Form:
    return {"type": "triggered_tags", "triggers": [*triggers], "tags": tags, **fields}


def separated(separator: str, *tags: Form, **fields: Any) -> Form:
    return {"type": "tags_with_separator", "tags": [*tags], "separator": separator, **fields}


def accepts(form: Form, *parts: str) -> bool:
    """Whether a text may be generated and end there; control tokens are parts of their own."""
    params = StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form})
    tokens = [
        token
        for part in parts
        for token in ([SPECIALS[part]] if part in SPECIALS else part.encode())
    ]
    return takes(new_matcher(BYTES, params, SPECIALS), tokens)


ONE, TWO = tag("<f=1>", JSON, "</f>"), tag("<f=2>", WORD, "</f>")
X = "<f=2>x</f>"
TAGS = {"tags": [ONE, TWO], "triggers": ["<f="]}


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (const("hi"), ["hi"], ["h", "hix", ""]),
        (sequence(const("a"), WORD, const("abc")), ["axabc", "aabcabc"], ["aabc", "abc"]),
        (sequence(const("x"), JSON, const("y")), ['x{"a":1}y'], ['x{"a":1}', '{"a":1}y']),
        (either(const("yes"), const(""), JSON), ["yes", "", '{"a": 2}'], ["ye", "yesno"]),
        (TEXT, ["", "any\nthing"], []),
        ({**TEXT, "excludes": ["bad", "worse"]}, ["good", "ba"], ["a bad b", "worse"]),
        (tag("<t>", TEXT, "</t>"), ["<t>x\ny</t>", "<t></t</t>"], ["<t>x", "<t>x</t>y"]),
        (tag("<t>", TEXT, ["</t>", "<e>"]), ["<t>x</t>", "<t>x<e>"], ["<t>x</t><e>"]),
        (tag("<t>", {**TEXT, "excludes": ["q"]}, "</t>"), ["<t>x</t>"], ["<t>q</t>"]),
        (tag("<t>", sequence(const("k="), TEXT), "</t>"), ["<t>k=v</t>"], ["<t>v</t>"]),
        (tag("", JSON, ""), ['{"a":1}'], ["x"]),
        (
            sequence(tag("<think>", TEXT, "</think>"), triggered([ONE], "<f=")),
            ['<think>hm</think>hi<f=1>{"a":1}</f>more', "<think></think>"],
            ["hi", "<think>x", "<think></think><f=1>x", "<think></think><f=2>"],
        ),
        (
            triggered([ONE, TWO], "<f="),
            ["", "a", f'a<f=1>{{"a":1}}</f>b{X}', X + X],
            ["<f=3>", "a<f=1>{}</f>", "<f=2>X</f>"],
        ),
        (triggered([ONE, TWO], "<f=", at_least_one=True), [X, X + "b" + X], ["", "b" + X]),
        (
            triggered([TWO], "<f=", stop_after_first=True),
            ["", "abc", "abc" + X],
            [X + "b", X + X, "<f="],
        ),
        (
            triggered([TWO], "<f=", at_least_one=True, stop_after_first=True),
            [X],
            ["", "a" + X, X + "a"],
        ),
        (
            tag("[", triggered([TWO], "<f="), "]"),
            ["[]", "[abc]", f"[a{X}b]", f"[{X}]"],
            ["[a]b", "a", "[<f=2>]</f>", "[<f="],
        ),
        (
            tag("[", triggered([TWO], "<f=", stop_after_first=True), "]"),
            ["[]", "[abc]", f"[a{X}]"],
            [f"[{X}b]", "[a]]"],
        ),
        (
            sequence(tag("[", triggered([TWO], "<f="), "]"), JSON),
            ['[a]{"a":1}', f'[a{X}b]{{"a":1}}'],
            ["[a]", "[a]b", f"[a]b{X}]", f'[a]b{X}]{{"a":1}}'],
        ),
        (
            sequence(tag("[", triggered([TWO], "<f=", stop_after_first=True), "]"), const("!")),
            ["[a]!", f"[a{X}]!"],
            [f"[a]b{X}]!"],
        ),
        (
            triggered([tag("<x", TEXT, "</x>")], "<"),
            ["<xa</x>b", "<xa</x><xb</x>"],
            ["<xa</x><", "<xa</x><]", "<xa</x>b<]"],
        ),
        (
            {"type": "plus", "content": sequence(const("ba"), {"type": "regex", "pattern": "b*"})},
            ["ba", "babbabb", "babbbabb"],
            ["", "ab", "bb"],
        ),
        (
            separated(",", ONE, TWO),
            ["", X, f'{X},<f=1>{{"a":1}}</f>,{X}'],
            [",", X + ",", X + X],
        ),
        (separated("", TWO, at_least_one=True), [X, X + X], [""]),
        (separated(",", TWO, stop_after_first=True), ["", X], [f"{X},{X}"]),
        (
            sequence(
                {"type": "optional", "content": const("a")},
                {"type": "plus", "content": const("b")},
                {"type": "star", "content": JSON},
                {"type": "repeat", "min": 2, "max": 3, "content": const("d")},
            ),
            ["abbdd", "bddd", 'b{"a":1}{"a":2}dd'],
            ["add", "bd", "abdddd"],
        ),
        ({"type": "repeat", "min": 0, "max": 0, "content": JSON}, [""], ['{"a":1}']),
        ({"type": "repeat", "min": 1, "max": -1, "content": JSON}, ['{"a":1}{"a":2}'], [""]),
        (
            sequence({"type": "grammar", "grammar": 'root ::= "x" [0-9]+'}, const(";")),
            ["x12;"],
            ["x12", "x;"],
        ),
    ],
)
def test_what_a_format_accepts(form: Form, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(form, text)] == []
    assert [text for text in bad if accepts(form, text)] == []


def test_marks_that_are_control_tokens() -> None:
    token = {"type": "token", "token": CALL}
    for begin in (CALL, token):
        form = tag(begin, JSON, END)
        assert accepts(form, CALL, '{"a":1}', END)
        assert not accepts(form, *CALL, '{"a":1}', END)
    form = tag("[", triggered([tag(CALL + "f", TEXT, END)], CALL), "]")
    assert accepts(form, "[a", CALL, "fxy]", END, "b]")
    assert not accepts(form, "[a", CALL, "g")
    assert not accepts(form, "[a", CALL, "fxy]", END, "b")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (sequence(TEXT, const("x")), "must be the last part"),
        (sequence(), "elements is empty"),
        (separated(","), "tags is empty"),
        (triggered([ONE], "zz"), "no trigger is the beginning of '<f=1>'"),
        (tag({"type": "token", "token": "<|no|>"}, TEXT, ""), "'<|no|>' is no control token"),
        ({"type": "repeat", "min": 3, "max": 1, "content": JSON}, "repeat has min 3 and max 1"),
        ({**JSON, "style": "qwen_xml"}, "qwen_xml"),
        ({"type": "dispatch", "rules": []}, "dispatch"),
        ({"type": "regex", "pattern": "("}, "unclosed group"),
        ({"type": "json_schema", "json_schema": {"$id": "a", "$ref": "b"}}, "ref"),
    ],
)
def test_what_is_refused(form: Form, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        accepts(form)
    assert reason in str(caught.value).replace("\\", "")


@pytest.mark.parametrize("depth", [20, 400])
def test_deep_formats(depth: int) -> None:
    form = const("a")
    for _ in range(depth):
        form = {"type": "optional", "content": form}
    if depth == 20:
        assert accepts(form, "a")
        return
    with pytest.raises(InvalidRequestError, match="cannot be served"):
        accepts(form, "a")


@pytest.mark.parametrize("separate", [False, True])
def test_nested_formats_are_written_once(separate: bool) -> None:
    """Each level uses the inner one twice, so copies of its text would double at each level."""
    form = JSON
    for _ in range(12):
        inner = [tag("<a>", form, "</a>")]
        form = separated(",", *inner) if separate else triggered(inner, "<a", at_least_one=True)
        form = tag("(", form, ")")
    written, _ = write_format(msgspec.convert({"format": form}, FormattedTag), {}, str)
    assert len(written.lark) < 10_000
