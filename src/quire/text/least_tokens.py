"""A lower bound on the tokens of a text, without tokenizing it.

If every byte of a text is in some token, the text has at least as many tokens as its bytes divided
by those of the longest token. This holds for byte-level BPE and for BPE with byte fallback, if
normalizer and pre-tokenizer drop nothing. WordPiece produces at least one token per word. For other
tokenizers there is no bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any

import tokenizers

from quire.system.records import dataclass
from quire.text.tokenizers.byte_pairs import BytePairs
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE

_NFC_SHRINKS = 4
"""Composition shortens a text at most by this factor in UTF-8. It is 3 for Hangul and for
singletons such as U+1FEF. ASCII does not change."""
_KEEPING_CUTS = ("ByteLevel", "Digits", "Metaspace", "Split", "Punctuation", "UnicodeScripts")
"""Pre-tokenizers that drop nothing, unless their behavior is to remove matches."""
_CUTS_OF_WORDS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
_KEEPING_WORDS = ("BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD")
"""Normalizers that keep white space between words, and at least part of every word of letters."""
_WORD = re.compile(r"[^ \t\r\n]*[!-~À-ʯА-я][^ \t\r\n]*")
"""A word with a character that no normalizer drops, unlike accents and control characters."""


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """A lower bound on the tokens of texts.

    Attributes:
        longest: bytes of text in the longest token.
        composes: the text is normalized to NFC.
        strips: an added token may take any amount of white space with it.
        unknown: bytes that no token has; they vanish.
    """

    longest: int
    composes: bool
    strips: bool
    unknown: bytes

    def __call__(self, text: str) -> int:
        """Return a lower bound on the tokens of `text`, which must be valid Unicode."""
        longest = self.longest * (1 if text.isascii() or not self.composes else _NFC_SHRINKS)
        if self.strips and len(text) > longest:
            text = "".join(text.split())
        if text.isascii() and not self.unknown:
            return -(-len(text) // longest)
        data = text.encode()
        size = len(data.translate(None, self.unknown)) if self.unknown else len(data)
        return -(-size // longest)


def least_words(text: str) -> int:
    """Return a lower bound on the tokens of `text` for WordPiece."""
    return sum(1 for _ in _WORD.finditer(text))


def least_tokens(
    backend: tokenizers.Tokenizer, table: BytePairs | None = None
) -> Callable[[str], int] | None:
    """Return the bound for texts of `backend`; None if no bound is known.

    Args:
        table: the vocabulary, if `backend` is only its pipeline.
    """
    normalizer = _stages(backend.normalizer, "normalizers")
    cuts = _stages(backend.pre_tokenizer, "pretokenizers")
    model = backend.model
    if isinstance(model, tokenizers.models.WordPiece):
        added = backend.get_added_tokens_decoder().values()
        several = any(re.search(r"\s", token.content.strip()) for token in added)
        cut = any(each["type"] in _CUTS_OF_WORDS for each in cuts)
        kept = all(each["type"] in _KEEPING_WORDS for each in normalizer)
        return least_words if cut and kept and not several else None
    if table is None:
        if not isinstance(model, tokenizers.models.BPE):
            return None
        if model.continuing_subword_prefix or model.end_of_word_suffix:
            return None
    if not all(map(_keeps, normalizer)):
        return None
    if any(each["type"] not in _KEEPING_CUTS or _removes(each) for each in cuts):
        return None
    vocabulary: Container[str]
    if table is None:
        tokens = vocabulary = backend.get_vocab(with_added_tokens=True)
        longest = max(map(len, tokens)), max(len(token.encode()) for token in tokens)
        byte_fallback = model.byte_fallback
    else:
        vocabulary, longest, byte_fallback = table, table.longest, table.byte_fallback
    if any(each["type"] == "ByteLevel" for each in cuts):
        unknown = bytes(b for b in range(256) if CHAR_OF_BYTE[b] not in vocabulary)
        size = longest[0]
        if unknown and normalizer:  # normalized text may consist of unknown bytes, which vanish
            return None
    else:
        unknown = bytes(b for b in range(256) if f"<0x{b:02X}>" not in vocabulary)
        size = longest[1]
        if unknown or not byte_fallback:
            return None
    added = backend.get_added_tokens_decoder().values()
    size = max([size, *(len(token.content.encode()) for token in added)])
    composes = any(each["type"] == "NFC" for each in normalizer)
    strips = any(token.lstrip or token.rstrip for token in added)
    return LeastTokens(size, composes, strips, unknown)


def _stages(component: Any, members: str) -> list[dict[str, Any]]:
    """Return the stages of a normalizer or pre-tokenizer, as in tokenizer.json."""
    if component is None:
        return []
    found: dict[str, Any] = json.loads(component.__getstate__())
    waiting, stages = [found], []
    while waiting:
        stage = waiting.pop()
        if stage["type"] == "Sequence":
            waiting += stage[members]
        else:
            stages.append(stage)
    return stages


def _keeps(stage: dict[str, Any]) -> bool:
    """Return whether a normalizer shortens a text no more than NFC."""
    if stage["type"] == "Replace":
        found = stage["pattern"].get("String")
        return found is not None and len(found.encode()) <= len(stage["content"].encode())
    return stage["type"] in ("NFC", "NFD", "Prepend", "ByteLevel")


def _removes(cut: dict[str, Any]) -> bool:
    return str(cut.get("behavior", "")).lower() == "removed"
