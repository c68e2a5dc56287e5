"""Bad words as the token sequences that spell them."""

from __future__ import annotations

from itertools import chain

from quire.text.tokenizers.tokenizer import Tokenizer


def word_tokens(tokenizer: Tokenizer, words: list[str]) -> list[list[int]]:
    """Return each word's token sequences, with and without a space before it.

    Sequences for the start of a text and for its middle, because some tokenizers add a space at the
    start. Takes about 50 µs per word.
    """
    lead = tokenizer.encode("\n", add_special_tokens=False)
    sequences: dict[tuple[int, ...], None] = {}
    for text in chain.from_iterable((word, " " + word.lstrip()) for word in words):
        sequences[tuple(tokenizer.encode(text, add_special_tokens=False))] = None
        inside = tokenizer.encode("\n" + text, add_special_tokens=False)
        if inside[: len(lead)] == lead:
            sequences[tuple(inside[len(lead) :])] = None
    return [list(ids) for ids in sequences if ids]
