"""dummy.py: every id reads as something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.text.tokenizers.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(None, vocab_size=50_000)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_every_other_id_is_a_word_of_its_own() -> None:
    words = [TOKENIZER.decode([id_]) for id_ in range(256, TOKENIZER.vocab_size)]
    assert len(set(words)) == len(words)
    assert all(len(word) <= 6 and word.strip().isalpha() for word in words)


def test_ids_and_tokens_correspond() -> None:
    for id_ in (0, 255, 256, 1000):
        token = TOKENIZER.id_to_token(id_)
        assert token is not None
        assert TOKENIZER.token_to_id(token) == id_
    assert TOKENIZER.id_to_token(50_000) is None
    assert TOKENIZER.token_bytes(-1) == b""


def test_a_vocabulary_holds_all_bytes() -> None:
    with pytest.raises(ValueError, match="every byte"):
        load_tokenizer(None, vocab_size=255)
