"""The model's vocabulary in llguidance's form: each token's bytes, control tokens separate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.errors import InvalidRequestError
from quire.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_SPECIAL = b"\xff"
"""Begins the name of a control token, so that no text can be one."""
FIRST_SPECIAL = 257
"""Of `byte_tokenizer`: the first control token behind the one that ends the text."""


def matcher_tokenizer(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> LLTokenizer:
    """Return the vocabulary in llguidance's form; control tokens have no text.

    Args:
        vocab_size: of the logits; ids beyond the tokenizer's own are never allowed.
        eos_token_ids: allowed where the text may end.

    Raises:
        InvalidRequestError: the model has no token to end a text with.
    """
    from llguidance import LLTokenizer

    if not eos_token_ids:
        raise InvalidRequestError(
            "the model has no end-of-sequence token, without which no structure can end.",
            param="structured_outputs",
        )
    named = special_tokens(tokenizer, eos_token_ids).values()
    special = {token for token in named if token < vocab_size}
    tokens = [
        _special_name(i) if i in special else tokenizer.token_bytes(i) for i in range(vocab_size)
    ]
    wrapper = _Vocabulary(tokens, eos_token_ids[0], sorted(special))
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids))  # type: ignore[arg-type]


def special_tokens(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> dict[str, int]:
    """Return the control tokens by name."""
    ids = sorted({*tokenizer.all_special_ids, *eos_token_ids})
    return {tokenizer.id_to_token(i) or f"<{i}>": i for i in ids}


def byte_tokenizer(num_special: int = 0) -> LLTokenizer:
    """Return a vocabulary of bytes and an end token, which suffices to check a grammar.

    Args:
        num_special: control tokens behind these, from `FIRST_SPECIAL` on.
    """
    from llguidance import LLTokenizer

    special = list(range(256, FIRST_SPECIAL + num_special))
    tokens = [*(bytes([byte]) for byte in range(256)), *map(_special_name, special)]
    return LLTokenizer(_Vocabulary(tokens, 256, special), eos_token=256)  # type: ignore[arg-type]


class _Vocabulary:
    """The members of a tokenizer that `LLTokenizer` reads.

    Text that is forced is made into the longest tokens that spell it, whatever the tokenizer
    itself would do at the beginning of a text.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos_token_id: int, special: list[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = special
        controls = set(special)
        self._ids = {raw: i for i, raw in enumerate(tokens) if raw and i not in controls}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str | bytes) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        while at < len(raw):
            sizes = range(min(self._longest, len(raw) - at), 0, -1)
            size = next((n for n in sizes if raw[at : at + n] in self._ids), 0)
            if not size:  # no token spells it: it cannot be said
                break
            ids.append(self._ids[raw[at : at + size]])
            at += size
        return ids


def _special_name(token_id: int) -> bytes:
    return _SPECIAL + f"<{token_id}>".encode()
