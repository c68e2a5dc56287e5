"""A BPE vocabulary in native tables, which the `tokenizers` library's pipeline feeds with words.

The library's own tables of 151,000 tokens take 0.4 s to build and 25 MB more at their peak.
The pipeline still finds added tokens, normalizes, and splits text into words. Its model knows no
piece of a word, so it returns each word as one unknown token, of id 0. Added tokens follow that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from quire import _native


class BytePairs:
    """The tokens and merges of a tokenizer.json.

    Args:
        path: that file.
        table: its model's tokens.
        byte_fallback: a character without a token becomes tokens such as "<0x41>".
        added: content → id of its added tokens, in the pipeline's order.
    """

    def __init__(
        self, path: Path, table: _native.BytePairs, byte_fallback: bool, added: dict[str, int]
    ) -> None:
        self.path = path
        self.byte_fallback = byte_fallback
        self._table = table
        self._added = added
        self._kinds = [0, *added.values()]

    def encode(self, words: tokenizers.Encoding, stand_ins: Sequence[int] = ()) -> list[int]:
        """Return the ids of the pipeline's words.

        Args:
            stand_ins: ids of tokens that a copy of the pipeline has behind the added ones.
        """
        kinds = [*self._kinds, *stand_ins] if stand_ins else self._kinds
        return self._table.encode(words.tokens, words.ids, kinds)

    def id_of(self, kind: int) -> int:
        """Return the id of an added token, given the pipeline's."""
        return self._kinds[kind]

    @property
    def size(self) -> int:
        """Return the number of tokens, added ones included."""
        return self._table.size + sum(self._table.id(token) is None for token in self._added)

    @property
    def longest(self) -> tuple[int, int]:
        """Return the characters and the bytes of the longest of the model's tokens."""
        return self._table.max_chars, self._table.max_bytes

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and self.token_to_id(token) is not None

    def token_to_id(self, token: str) -> int | None:
        added = self._added.get(token)
        return self._table.id(token) if added is None else added

    def id_to_token(self, token_id: int) -> str | None:
        return self._table.token(token_id)
