"""Tokens as text, in turns: a prompt may have a million."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.server.turns import Turns
from quire.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

TOKENS_PER_TURN = 4096


def decoded(tokenizer: Tokenizer, token_ids: list[int], *, skip_special_tokens: bool) -> Turns[str]:
    """Return what `tokenizer.decode` returns."""
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens)
    for start in range(0, len(token_ids), TOKENS_PER_TURN):
        if start:
            yield
        detokenizer.append(token_ids[start : start + TOKENS_PER_TURN])
    detokenizer.flush()
    return detokenizer.text


def spelled(tokenizer: Tokenizer, token_ids: list[int]) -> Turns[list[str | None]]:
    """Return each token as the vocabulary spells it."""
    found: list[str | None] = []
    for start in range(0, len(token_ids), TOKENS_PER_TURN):
        if start:
            yield
        found += map(tokenizer.id_to_token, token_ids[start : start + TOKENS_PER_TURN])
    return found
