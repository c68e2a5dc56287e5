"""Tokens of a drafter whose vocabulary is not the target's, matched by their texts."""

from __future__ import annotations

import filecmp
from pathlib import Path

import numpy as np

from quire.core.batch import Column
from quire.core.config import EngineConfig
from quire.core.dtypes import HostArray
from quire.system.records import dataclass
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

_CONTROL = b"\xff"
"""Begins the name of a control token, so that no text can be one."""


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """How a drafter's tokens and the target's correspond.

    Attributes:
        own: int64, the drafter's tokens that the target has, too.
        target: int64, their ids in the target.
        size: tokens of the target.
        reads: int64 [size], the drafter's token to read for each of the target's. Without an equal
            one, it is the one that spells the longest part of the text's end.
    """

    own: Column
    target: Column
    size: int
    reads: Column | None = None

    def widen(self, logits: HostArray) -> HostArray:
        """Return the logits of the target's tokens; -inf for those that the drafter lacks."""
        wide = np.full((len(logits), self.size), -np.inf, dtype=np.float32)
        wide[:, self.target] = logits[:, self.own]
        return wide


def draft_vocabulary(target: EngineConfig, draft: EngineConfig) -> DraftVocabulary | None:
    """Return how the tokens of two models correspond; None if their ids are the same."""
    size = target.model.vocab_size
    if target.tokenizer_path is None or draft.tokenizer_path is None:
        return None  # `resolve` has compared the sizes
    if draft.model.vocab_size == size and _same_file(target.tokenizer_path, draft.tokenizer_path):
        return None
    ours, others = _texts(target), _texts(draft)
    if ours == others:
        return None
    return match_texts(ours, others, size)


def match_texts(target: list[bytes], draft: list[bytes], size: int) -> DraftVocabulary:
    """Match tokens by text; of several with the same text, the last one counts.

    Args:
        target, draft: texts by token id; empty ones match nothing.
        size: tokens of the target's logits.
    """
    ids = {text: token for token, text in enumerate(target) if text}
    own = [token for token, text in enumerate(draft) if text in ids]
    by_text = {text: token for token, text in enumerate(draft) if text}
    reads = np.zeros(size, dtype=np.int64)
    for token, text in enumerate(target):
        # A control token has no parts that mean anything.
        ends = (text,) if text.startswith(_CONTROL) else (text[i:] for i in range(len(text)))
        reads[token] = next((by_text[end] for end in ends if end in by_text), 0)
    matched = np.array([ids[draft[token]] for token in own], dtype=np.int64)
    return DraftVocabulary(np.array(own, dtype=np.int64), matched, size, reads)


def _same_file(target: str, draft: str) -> bool:
    """Return whether both folders have the same tokenizer.json, which is quickly seen."""
    one, other = (Path(path) / "tokenizer.json" for path in (target, draft))
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _texts(config: EngineConfig) -> list[bytes]:
    """Return the text of each token; control tokens have names, and the end token one for all."""
    path, size = config.tokenizer_path, config.model.vocab_size
    assert path is not None
    tokenizer = load_tokenizer(Path(path), vocab_size=size)
    known = min(size, tokenizer.vocab_size)  # logits may have more rows, which mean nothing
    texts = [tokenizer.token_bytes(token) for token in range(known)]
    for token in tokenizer.all_special_ids:
        if token < known:
            texts[token] = _control_name(tokenizer, token)
    return texts


def _control_name(tokenizer: Tokenizer, token: int) -> bytes:
    if token == tokenizer.eos_token_id:
        return _CONTROL + b"<end>"
    return _CONTROL + (tokenizer.id_to_token(token) or str(token)).encode()
