"""A reasoning of limited length: which token has to come next, by the tokens so far alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import ThinkingMarks
from quire.sampling.grammars import Grammars, MaskFiller
from quire.sampling.thinking import MAX_GRACE, ThinkingLimit
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.sampling.test_grammars import EOS, VOCAB, allowed, append, state

MARKS = ThinkingMarks(("<think>", "<t>"), ("</think>", "</t>"))
BEGUN = ThinkingMarks(MARKS.begins, MARKS.ends, begun=True)


def limit(budget: int, marks: ThinkingMarks = MARKS) -> ThinkingLimit:
    return ThinkingLimit(budget, marks, DummyTokenizer(VOCAB))


def tokens(text: str | bytes) -> np.ndarray:
    return np.array(list(text.encode() if isinstance(text, str) else text), dtype=np.int32)


def held(text: str | bytes, budget: int, marks: ThinkingMarks = MARKS) -> str | None:
    """What has to follow `text`, a character at a time."""
    forced = limit(budget, marks).next_token(tokens(text))
    return None if forced is None else chr(forced)


def finished(text: str, budget: int, marks: ThinkingMarks = MARKS) -> str:
    """`text` of a model that says nothing else, with what is forced in its place."""
    follower, said = limit(budget, marks), ""
    for number in range(len(text)):
        forced = follower.next_token(tokens(said))
        said += text[number] if forced is None else chr(forced)
    return said


@pytest.mark.parametrize(
    ("text", "budget", "expected"),
    [
        ("<think>abc", 4, None),
        ("<think>abcd", 4, "<"),
        ("<think>abcd</thi", 4, "n"),
        ("<think>abcd</think>", 4, None),
        ("<think>abcd</think>more and more", 4, None),
        (" \n<think>abcd", 4, "<"),
        ("<t>abcd", 4, "<"),
        ("<think>", 0, "<"),
        ("<think>a</t>bcdef", 5, None),  # its own end
        ("<think></think>", 8, None),  # an end that the budget just holds
        ("<think></think", 7, "<"),
        ("So <think>abcdefg", 4, None),  # not at the beginning
        ("<thinker", 0, None),
        ("abcdefgh", 4, None),
        ("", 0, None),
    ],
)  # fmt: skip
def test_what_has_to_follow(text: str, budget: int, expected: str | None) -> None:
    assert held(text, budget) == expected


def test_a_token_may_begin_and_end_it() -> None:
    class Whole(DummyTokenizer):
        def token_bytes(self, token: int) -> bytes:
            return b"<think></think>" if token == 1 else super().token_bytes(token)

    follower = ThinkingLimit(1, MARKS, Whole(VOCAB))
    assert follower.next_token(np.array([1, *b"abcdef"], dtype=np.int32)) is None


def test_a_prompt_that_has_begun_it() -> None:
    assert held("", 0, BEGUN) == "<"
    assert held("abc", 4, BEGUN) is None
    assert finished("." * 16, 4, BEGUN) == "....</think>...."


def test_the_text_that_ends_it_may_be_longer_than_the_mark() -> None:
    marks = ThinkingMarks(("<t>",), ("<e>",), "<e>final:")
    assert finished("<t>" + "." * 14, 2, marks) == "<t>..<e>final:..."


def test_a_character_is_not_cut() -> None:
    for character in ("é", "ÿ", "\u07ff", "\u0800", "\u2000", "€", "\uffff", "\U00010000", "🙂"):
        raw = character.encode()
        for known in range(1, len(raw)):
            assert held(b"<t>ab" + raw[:known], 2 + known) is None
        assert held(b"<t>ab" + raw, 3) == "<"
    for wrong in (b"\x80\x80\x80", b"\xe1a", b"\xe1\x7f", b"\xf0\x90\x80\x80\x80", b"\x80a\x80"):
        assert held(b"<t>" + wrong, len(wrong)) == "<"
    for first in (b"\xc0", b"\xf0"):  # a character that is never completed
        for beyond in range(MAX_GRACE):
            assert held(b"<t>a" + first * (1 + beyond), 2) is None
        assert held(b"<t>a" + first * (1 + MAX_GRACE), 2) == "<"


def test_a_token_without_text_cuts_no_character() -> None:
    class Silent(DummyTokenizer):
        def token_bytes(self, token: int) -> bytes:
            return b"" if token == EOS else super().token_bytes(token)

    marks = ThinkingMarks(("<t>",), ("<e>",))
    follower = ThinkingLimit(5, marks, Silent(VOCAB))
    assert follower.next_token(np.array([*b"<t>a", *"🙂".encode()[:3], EOS])) is None


def test_the_end_is_forced_without_special_tokens() -> None:
    class Starting(DummyTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [EOS] * add_special_tokens + super().encode(text)

    assert ThinkingLimit(0, BEGUN, Starting(VOCAB)).next_token(tokens("")) == ord("<")


def test_it_is_a_function_of_the_tokens_alone() -> None:
    draw = random.Random(0)
    for _ in range(200):
        budget = draw.randrange(6)
        pieces = ["<think>", "</think>", "</th", "a", " ", "é", "<"]
        text = draw.choice(["<think>", ""]) + "".join(draw.choices(pieces, k=8))
        marks, output = draw.choice([MARKS, BEGUN]), tokens(text)
        follower = limit(budget, marks)
        for _ in range(12):  # of any length, in any order: steps fail, and are computed again
            known = output[: draw.randrange(len(output) + 1)]
            assert follower.next_token(known) == limit(budget, marks).next_token(known)


def test_a_forced_token_is_the_only_one_whatever_else_is_asked() -> None:
    filler = MaskFiller(Grammars(lambda: DummyTokenizer(VOCAB), VOCAB))
    row = state(
        "<think>abc", thinking_token_budget=3, thinking_marks=MARKS, bad_words_token_ids=[[60]],
        min_tokens=90, presence_penalty=1.0, structured_outputs=None,
    )  # fmt: skip
    said = ""
    for _ in "</think>":
        [token] = allowed(filler, row)
        append(row, token)
        said += chr(token)
    assert said == "</think>"
    filler.begin([row])
    filler.end()
    edits = row.edits(VOCAB)
    assert edits.allowed is None
    assert EOS in edits.banned


def test_a_limit_alone_asks_for_no_masks() -> None:
    filler = MaskFiller(Grammars(lambda: DummyTokenizer(VOCAB), VOCAB))
    row = state("<think>", thinking_token_budget=3, thinking_marks=MARKS, structured_outputs=None)
    filler.begin([row])
    filler.end()
    assert (row.fault, row.matcher, row.num_drafts) == (None, None, 0)


def test_what_is_forced_behind_drafts_follows_them() -> None:
    filler = MaskFiller(Grammars(lambda: DummyTokenizer(VOCAB), VOCAB))
    row = state(
        "<think>abc", thinking_token_budget=3, thinking_marks=MARKS, structured_outputs=None
    )
    start = int(row._num_tokens[0])
    row._token_ids[start : start + 2] = list(b"</")
    row.num_drafts = 2
    assert [allowed(filler, row, ahead) for ahead in range(3)] == [{60}, {47}, {116}]  # "</t"


def test_the_structure_begins_behind_the_forced_end() -> None:
    from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams

    filler = MaskFiller(Grammars(lambda: DummyTokenizer(VOCAB), VOCAB))
    wanted = StructuredOutputsParams(
        choice=["yes", "no"], reasoning=ReasoningMarks(MARKS.begins, MARKS.ends)
    )
    row = state(
        "<think>abcé", thinking_token_budget=4, thinking_marks=MARKS, structured_outputs=wanted
    )
    for _ in "</think>":
        [token] = allowed(filler, row)
        append(row, token)
    assert allowed(filler, row) >= {ord("y"), ord("n")}


def test_a_tokenizer_that_cannot_be_read_is_that_requests_error() -> None:
    def fail() -> DummyTokenizer:
        raise OSError("gone")

    filler = MaskFiller(Grammars(fail, VOCAB))
    row = state(thinking_token_budget=3, thinking_marks=MARKS, structured_outputs=None)
    filler.begin([row])
    filler.end()
    with pytest.raises(InvalidRequestError, match="gone") as error:
        row.edits(VOCAB)
    assert error.value.param == "thinking_token_budget"


def test_a_limit_needs_marks() -> None:
    for marks in (None, ThinkingMarks((), ())):
        with pytest.raises(InvalidRequestError, match="thinking_marks") as error:
            SamplingParams(thinking_token_budget=3, thinking_marks=marks)
        assert error.value.param == "thinking_token_budget"
    with pytest.raises(InvalidRequestError, match="thinking_token_budget is -2"):
        SamplingParams(thinking_token_budget=-2)
    assert not SamplingParams(thinking_token_budget=-1).limits_thinking
