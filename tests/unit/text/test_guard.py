"""The pattern of special tokens: the same as a list of them, but not tried one by one."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from quire.text.guard import any_of

WORDS = st.lists(st.text("ab<|\n", max_size=6), max_size=12)


@given(WORDS, st.text("ab<|\n", max_size=40))
@example(["a" * n for n in range(1, 120)], "a" * 130 + "b")
@example([], "a")
def test_it_finds_what_a_list_finds(words: list[str], text: str) -> None:
    longest_first = sorted(filter(None, words), key=len, reverse=True)
    listed = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    found = re.compile(any_of(words))
    assert [m.span() for m in found.finditer(text)] == [m.span() for m in listed.finditer(text)]


def test_words_share_what_they_begin_with() -> None:
    """One client's "<<<…" would hold up the others while each of thousands is compared."""
    pattern = any_of(["[IMG]", *(f"<unused{i}>" for i in range(1000))])
    assert pattern.count("unused") == pattern.count("<") == 1


def test_their_pattern_is_made_once() -> None:
    """Each mark of each structured request needs it, and thousands of words take 0.1 s."""
    specials = {f"<unused{i}>": i for i in range(10)}
    assert any_of(specials) is any_of({**specials})
