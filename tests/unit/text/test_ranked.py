"""Vocabularies with ranks in place of merges, against merging by rank itself."""

from __future__ import annotations

import json
import random
import re
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizers.hf_tokenizer import HFTokenizer
from quire.text.tokenizers.tokenizer_files import load_files

PATTERN = r" ?[a-z\u00e0-\u00ff]+|[^a-z\u00e0-\u00ff]"
TEXT = "the theatre then; their été and the other bathers\n" * 3 + "abab ababa bababab aabb"
SPECIAL = 40


def ranks_of(text: str, count: int = 120) -> dict[bytes, int]:
    """Train a vocabulary: bytes, then the most frequent pair again and again."""
    words = [[bytes([b]) for b in word.encode()] for word in re.findall(PATTERN, text)]
    ranks = {bytes([b]): b for b in range(256)}
    for _ in range(count):
        pairs = [pair for word in words for pair in pairwise(word)]
        if not pairs:
            break
        best = max(sorted(set(pairs)), key=pairs.count)
        ranks.setdefault(b"".join(best), len(ranks))
        words = [merged(word, b"".join(best)) for word in words]
    return ranks


def merged(word: list[bytes], token: bytes) -> list[bytes]:
    """Return a word whose first pairs that make `token` are merged."""
    found: list[bytes] = []
    for part in word:
        if found and found[-1] + part == token and len(found[-1]) < len(token):
            found[-1] = token
        else:
            found.append(part)
    return found


def encoded(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Return the tokens of a text: the pair of the least rank is merged first, the left one of
    equals."""
    ids = []
    for word in re.findall(PATTERN, text):
        parts = [bytes([b]) for b in word.encode()]
        while True:
            joined = [a + b for a, b in pairwise(parts)]
            known = [(ranks[pair], at) for at, pair in enumerate(joined) if pair in ranks]
            if not known:
                break
            _, at = min(known)
            parts[at : at + 2] = [joined[at]]
        ids += [ranks[part] for part in parts]
    return ids


def write_tekken(folder: Path, ranks: dict[bytes, int], **changes: Any) -> Path:
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(ranks), "version": "v7",
        "default_vocab_size": len(ranks) + SPECIAL, "default_num_special_tokens": SPECIAL,
    }  # fmt: skip
    vocab = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab} | changes))
    return folder


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return ranks_of(TEXT)


@pytest.fixture(scope="module")
def tekken(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    return load_files(write_tekken(tmp_path_factory.mktemp("tekken"), ranks))


def test_the_pair_of_the_least_rank_is_merged_first(
    tekken: HFTokenizer, ranks: dict[bytes, int]
) -> None:
    rng = random.Random(0)
    for _ in range(200):
        cuts = [TEXT[at : at + 5].strip() for at in rng.choices(range(len(TEXT)), k=6)]
        text = "".join([*cuts, *rng.choices("ab é;\n東", k=4)])
        expected = [SPECIAL + rank for rank in encoded(text, ranks)]
        assert tekken.encode(text, add_special_tokens=False) == expected
        assert tekken.decode(expected) == text


def test_special_tokens_of_a_tekken_file(tekken: HFTokenizer, tmp_path: Path) -> None:
    assert tekken.encode("a")[0] == tekken.token_to_id("<s>") == tekken.bos_token_id == 1
    assert tekken.eos_token_id == 2
    assert tekken.encode("</s>[INST]<SPECIAL_39>", add_special_tokens=False) == [2, 3, 39]
    assert tekken.vocab_size == SPECIAL + len(ranks_of(TEXT))
    listed = [{"rank": 5, "token_str": "[THINK]", "is_control": True}]
    own = load_files(write_tekken(tmp_path, ranks_of("abc"), special_tokens=listed))
    assert own.token_to_id("[THINK]") == 5
    assert own.token_to_id("[INST]") is None
    assert own.bos_token_id is None


def test_kimis_file(ranks: dict[bytes, int], tmp_path: Path) -> None:
    lines = [b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (tmp_path / "tiktoken.model").write_bytes(b"".join(lines))
    with pytest.raises(UnsupportedModelError, match=r"tiktoken\.model does not say how"):
        load_files(tmp_path)
    first = len(ranks)
    declared = {str(first + 2): {"content": "<|im_end|>", "special": True}}
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": declared}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"eos_token": "<|im_end|>"})
    )
    tokenizer = load_files(tmp_path)
    assert tokenizer.eos_token_id == first + 2
    assert tokenizer.vocab_size == first + 256
    assert tokenizer.token_to_id(f"<|reserved_token_{first + 1}|>") == first + 1
    assert tokenizer.encode("the<|im_end|>") == [ranks[b"the"], first + 2]
    assert tokenizer.decode(tokenizer.encode("東 Abé")) == "東 Abé"


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": [{"rank": 0, "token_bytes": "?"}]},
        {"vocab": [{"rank": 300, "token_bytes": "YQ=="}]},
        {"vocab": None},
        {"special_tokens": [{"rank": SPECIAL, "token_str": "x"}]},
        {"special_tokens": [{"rank": 0, "token_str": "<SPECIAL_1>"}]},
        {"special_tokens": [{"rank": 0, "token_str": "the"}]},
        {"config": {"pattern": "[", "default_vocab_size": 296, "default_num_special_tokens": 40}},
    ],
)
def test_a_damaged_file(changes: dict[str, Any], ranks: dict[bytes, int], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        load_files(write_tekken(tmp_path, ranks, **changes))
