"""Vocabularies matched by the texts of their tokens."""

from __future__ import annotations

import numpy as np

from quire.spec.vocabulary import match_texts

END = b"\xff<end>"


def test_tokens_are_matched_by_text() -> None:
    ours = [b"a", b"b", b" cat", b"", END]
    others = [END, b"b", b"dog", b" cat", b"a", b""]
    found = match_texts(ours, others, size=6)
    assert found.own.tolist() == [0, 1, 3, 4]
    assert found.target.tolist() == [4, 1, 2, 0]
    assert found.reads.tolist() == [4, 1, 3, 0, 0, 0]
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)
    none = -np.inf
    assert found.widen(logits).tolist() == [
        [4, 1, 3, none, 0, none],
        [10, 7, 9, none, 6, none],
    ]


def test_a_token_that_the_drafter_lacks_is_read_as_the_end_of_its_text() -> None:
    found = match_texts([b"the cat", b"zq", END + b"user"], [b"t", b"cat", b"q", b"user"], size=3)
    assert found.reads.tolist() == [1, 2, 0]
    assert not len(found.own)


def test_of_several_tokens_with_one_text_the_last_one_counts() -> None:
    found = match_texts([b"a", b"a"], [b"a", b"b", b"a"], size=2)
    assert found.target.tolist() == [1, 1]
    assert found.reads.tolist() == [2, 2]
