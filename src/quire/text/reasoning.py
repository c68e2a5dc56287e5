"""Detect whether a prompt begins or ends a reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.request import EMBEDDED
from quire.text.tokenizers.tokenizer import Tokenizer

TAIL_TOKENS = 16
"""Number of the prompt's last tokens that are searched for marks of reasoning."""


def prompt_reasoning(
    tokenizer: Tokenizer, token_ids: list[int], begins: Sequence[str], ends: Sequence[str]
) -> bool | None:
    """Return True if the prompt ends inside reasoning, False if after it, None without a mark.

    Args:
        begins, ends: the marks around reasoning.
    """
    if not token_ids or token_ids[-1] == EMBEDDED:
        return None
    tail = tokenizer.decode(token_ids[-TAIL_TOKENS:], skip_special_tokens=False).rstrip()
    if tail.endswith(tuple(begins)):
        return True
    return False if tail.endswith(tuple(ends)) else None
