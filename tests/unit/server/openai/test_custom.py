"""The input of a custom tool, read out of a call's arguments."""

from __future__ import annotations

import json
import random

import pytest

from quire.server.openai.custom import InputReader

LETTERS = 'ab"\\/\n\té😀u{}:d8'


def read(text: str, *cuts: int, plain: bool = False) -> str:
    reader = InputReader(plain=plain)
    found, last = "", 0
    for cut in [*sorted(cuts), len(text)]:
        found += reader.push(text[last:cut])
        last = cut
    return found + reader.end()


def test_every_text_comes_back_however_it_is_cut() -> None:
    rng = random.Random(7)
    for _ in range(400):
        text = "".join(rng.choices(LETTERS, k=rng.randrange(12)))
        for written in (
            json.dumps({"input": text}),
            json.dumps({"input": text}, ensure_ascii=False, indent=1),
        ):
            cuts = [rng.randrange(len(written) + 1) for _ in range(4)]
            assert read(written) == text
            assert read(written, *cuts) == text
            assert read(written, *range(len(written))) == text


def test_what_is_no_such_object_is_the_same_however_it_is_cut() -> None:
    rng = random.Random(8)
    for _ in range(400):
        text = "".join(rng.choices('{"input": \\ud83dDE00 q}', k=20))
        written = rng.choice(["", '{"input": "', '{ "input" :']) + text
        assert read(written, *range(len(written))) == read(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "cut off', "cut off"),
        ('{"input": "a \\q', "a \\q"),
        ('{"input": "a\\u00', "a\\u00"),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"input": "a", "more": 1}', "a"),
        ('{"inp', ""),
        ("", ""),
        ('{"input": 5}', '{"input": 5}'),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("ls -l", "ls -l"),
    ],
)
def test_odd_arguments(written: str, expected: str) -> None:
    assert read(written) == expected


def test_an_input_without_an_object_around_it() -> None:
    assert read('{"input": "a"}', 3, plain=True) == '{"input": "a"}'
