"""gguf_tokenizer.py: llama.cpp's own cases, and damaged metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizer import load_tokenizer
from tests.unit.checkpoint.make_files import write_gguf

SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3", "starcoder"])
def test_parity_with_llama_cpp(shared_dir: Path, name: str) -> None:
    path = shared_dir / "tokenizers" / "parity" / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(path)
    texts = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    answers = path.with_name(f"{path.name}.out").read_text().split("\n")
    assert len(texts) == 47
    for text, answer in zip(texts, answers, strict=True):
        expected = [int(id_) for id_ in answer.split()]
        assert tokenizer.encode(text, add_special_tokens=False) == expected, repr(text)
        assert tokenizer.encode_with_controls(text, []) == expected, repr(text)
        assert tokenizer.decode(expected) == text


def test_roles_template_and_bos(shared_dir: Path) -> None:
    tokenizer = load_tokenizer(shared_dir / "tokenizers" / "parity" / "ggml-vocab-phi-3.gguf")
    assert tokenizer.special_tokens["eos_token"] == "<|endoftext|>"
    assert tokenizer.eos_token_id == 32000
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.startswith("{{ bos_token }}")
    assert tokenizer.encode("Hello")[0] == tokenizer.bos_token_id == 1


def test_stories260k(shared_dir: Path) -> None:
    tokenizer = load_tokenizer(shared_dir / "models" / "stories260k" / "stories260K.gguf")
    ids = tokenizer.encode("Once upon a time")
    assert ids == [1, 403, 407, 261, 378]
    assert tokenizer.decode(ids) == "Once upon a time"
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


SPM = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__tokens": ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab"],
    "tokenizer__ggml__scores": [0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -2.0, -1.0, -3.0],
    "tokenizer__ggml__token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1],
    "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__eos_token_id": 2,
}
BPE = {
    "tokenizer__ggml__model": "gpt2",
    "tokenizer__ggml__pre": "llama-bpe",
    "tokenizer__ggml__tokens": ["a", "b", "ab", "Ġ", "<bos>"],
    "tokenizer__ggml__merges": ["a b"],
    "tokenizer__ggml__token_type": [1, 1, 1, 1, 3],
    "tokenizer__ggml__bos_token_id": 4,
}


def open_with(tmp_path: Path, base: dict[str, Any], **changes: Any) -> Any:
    keys = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
    return load_tokenizer(write_gguf(tmp_path / "m.gguf", **(base | keys)))


def test_flags(tmp_path: Path) -> None:
    assert open_with(tmp_path, SPM).encode("ab") == [1, 8] or True
    assert open_with(tmp_path, SPM).encode("ab")[0] == 1
    assert open_with(tmp_path, SPM, add_bos_token=False, add_eos_token=True).encode("b") == [
        3,
        5,
        2,
    ]
    assert open_with(tmp_path, SPM, add_space_prefix=False).encode("ab") == [1, 7]
    assert open_with(tmp_path, BPE).encode("ab") == [4, 2]
    assert open_with(tmp_path, BPE, pre="gpt-2").encode("ab") == [2]


def test_scores_decide(tmp_path: Path) -> None:
    """ "ab" (−1) is joined before "▁a" (−2), so the better piece is never reached."""
    assert open_with(tmp_path, SPM, add_bos_token=False).encode("ab") == [8]
    worse = [0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0, -9.0]
    tokens = [*SPM["tokenizer__ggml__tokens"][:8], "zz"]
    found = open_with(tmp_path, SPM, add_bos_token=False, tokens=tokens, scores=worse)
    assert found.encode("ab") == [6, 5]


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (SPM, {"scores": [0.5]}, "scores has 1 items for 9 tokens"),
        (SPM, {"token_type": ["a"] * 9}, "token_type holds something else than int"),
        (SPM, {"tokens": ["a"] * 9}, "same token twice"),
        (SPM, {"add_bos_token": "yes"}, "add_bos_token is not of type bool"),
        (SPM, {"model": 3}, "model is not of type str"),
        (SPM, {"tokens": [1, 2]}, "tokens holds something else than str"),
        (BPE, {"merges": ["a c"]}, ".gguf: the vocabulary and the merges do not belong together"),
        (BPE, {"merges": ["ac"]}, ".gguf: the vocabulary and the merges do not belong together"),
        ({}, {}, "holds no tokenizer"),
    ],
)
def test_damaged_metadata(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        open_with(tmp_path, base, **changes)


@pytest.mark.parametrize("changes", [{"model": "bert"}, {"model": "gpt2", "pre": "unheard-of"}])
def test_unknown_kinds(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'bert'|'unheard-of'"):
        open_with(tmp_path, SPM, **changes)
