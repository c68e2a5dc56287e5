"""stop.py: the first stop string, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.text.stop import StopStringMatcher, StopStrings

WORD = st.text("ab\n", min_size=1, max_size=5)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop): the match that ends first and, of those, the longest."""
    for end in range(len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            return end, max(here, key=len)
    return None


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[str, str | None, int]:
    """(text shown, stop found, most characters held back)."""
    matcher = StopStringMatcher(stops, include)
    shown, seen, held = "", "", 0
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown, seen = shown + text, seen + piece
        if stop is not None:
            assert matcher.flush() == ""
            return shown, stop, held
        held = max(held, len(seen) - len(shown))
    return shown + matcher.flush(), None, held


@given(
    st.lists(WORD, max_size=4), st.lists(st.text("ab\nc", max_size=6), max_size=8), st.booleans()
)
def test_streamed_is_whole(stops: list[str], pieces: list[str], include: bool) -> None:
    whole = "".join(pieces)
    shown, stop, held = run(stops, pieces, include)
    expected = first_match(whole, stops)
    if expected is None:
        assert (shown, stop) == (whole, None)
    else:
        end, stop_expected = expected
        assert stop == stop_expected
        assert shown == whole[: end if include else end - len(stop_expected)]
    assert held < max([len(stop) for stop in stops], default=1)


@given(st.lists(WORD, min_size=1, max_size=4), st.text("ab\nc", max_size=30))
def test_only_what_may_begin_a_stop_string_is_held(stops: list[str], text: str) -> None:
    matcher = StopStringMatcher(stops)
    shown = ""
    for index, char in enumerate(text):
        delta, stop = matcher.push(char)
        shown += delta
        if stop is not None:
            return
        held = text[len(shown) : index + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_nothing_follows_a_match() -> None:
    matcher = StopStringMatcher(["END"])
    assert matcher.push("oneENDtwo") == ("one", "END")
    assert matcher.push("three") == ("", "END")
    assert matcher.flush() == ""


def test_no_stop_strings_hold_nothing() -> None:
    matcher = StopStringMatcher([])
    assert matcher.push("text") == ("text", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStringMatcher(["a", ""])


NESTED = ["a" * length + "b" for length in range(1, 362)]
SUFFIXES = ["a" * 1023 + "c", *("b" + "a" * length for length in range(1, 340))]
RANDOM = [f"{number:04}" * 16 for number in range(1024)]


@pytest.mark.parametrize("stops", [NESTED, SUFFIXES, RANDOM])
def test_the_work_for_a_character_does_not_grow_with_the_strings(
    stops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as a request may have, with text that keeps most of them possible."""
    calls = 0
    is_begun = StopStrings._is_begun

    def counted(self: StopStrings, text: str) -> bool:
        nonlocal calls
        calls += 1
        return is_begun(self, text)

    monkeypatch.setattr(StopStrings, "_is_begun", counted)
    shared = StopStrings(stops)
    for text in ("a" * 1000 + "d" + "a" * 1000, "00010001" * 8):
        calls = 0
        for _ in range(3):  # sequences share it
            StopStringMatcher(shared).push(text)
        assert calls <= 3 * 2 * len(text)


def test_nested_stop_strings_end_with_the_longest() -> None:
    matcher = StopStringMatcher(["b", "ab", "aab", "c" * 9 + "aaab"])
    assert matcher.push("xaaab") == ("xa", "aab")
