"""gguf_tokenizer.py: llama.cpp's own cases, and damaged metadata."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.detokenizer import IncrementalDetokenizer
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.unit.checkpoint.make_files import write_gguf

SEPARATOR = "\n__ggml_vocab_test__\n"
loaded = cache(load_tokenizer)


def parity_file(shared_dir: Path, name: str) -> Path:
    return shared_dir / "tokenizers" / "parity" / f"ggml-vocab-{name}.gguf"


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3", "starcoder"])
def test_parity_with_llama_cpp(shared_dir: Path, name: str) -> None:
    path = parity_file(shared_dir, name)
    tokenizer = loaded(path)
    texts = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    answers = path.with_name(f"{path.name}.out").read_text().split("\n")
    assert len(texts) == 47
    for text, answer in zip(texts, answers, strict=True):
        expected = [int(id_) for id_ in answer.split()]
        assert tokenizer.encode(text, add_special_tokens=False) == expected, repr(text)
        assert tokenizer.encode_with_controls(text, []) == expected, repr(text)
        assert tokenizer.decode(expected) == text


def test_roles_template_and_bos(shared_dir: Path) -> None:
    tokenizer = loaded(parity_file(shared_dir, "phi-3"))
    assert tokenizer.special_tokens["eos_token"] == "<|endoftext|>"
    assert tokenizer.eos_token_id == 32000
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


ALPHABET = [CHAR_OF_BYTE[byte] for byte in range(256)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def of_tokens(tmp_path: Path, model: str, tokens: list[tuple[str, int]], **keys: Any) -> Tokenizer:
    """A tokenizer of 256 bytes, followed by `tokens` as pairs of text and type."""
    if model == "gpt2":
        first = [(token, NORMAL) for token in ALPHABET]
    else:
        first = [(token, BYTE) for token in BYTES]
    every = first + tokens
    base = {
        "tokenizer__ggml__model": model,
        "tokenizer__ggml__tokens": [token for token, _ in every],
        "tokenizer__ggml__token_type": [type_ for _, type_ in every],
    }
    if model != "llama":
        base["tokenizer__ggml__merges"] = []
    return open_with(tmp_path, base, **keys)


# deepseek-coder's user-defined tokens begin with these letters, which are in GPT-2's alphabet.
LETTERS = ["õ", "÷", "Á", "ý", "À", "ÿ", "ø", "ú", "þ", "ü", "ù", "ö", "û"]


@pytest.mark.parametrize("pre", ["deepseek-coder", "qwen35", "llama-bpe"])
def test_user_defined_tokens_are_plain_text(tmp_path: Path, pre: str) -> None:
    added = [*LETTERS, "Ġ", "ĠĠ", "grün", "  ", "<ü>"]
    added = [token for token in added if token not in ALPHABET]
    tokens = [(token, USER_DEFINED) for token in added]
    tokenizer = of_tokens(tmp_path, "gpt2", tokens, pre=pre)
    assert [tokenizer.token_bytes(256 + i) for i in range(len(added))] == [
        token.encode() for token in added
    ]
    assert tokenizer.decode([256 + added.index("grün")]) == "grün"


def test_letters_of_the_byte_alphabet_as_user_defined_tokens(tmp_path: Path) -> None:
    """As in deepseek-coder, where they take the places of bytes that no text has."""
    types = [USER_DEFINED if token in LETTERS else NORMAL for token in ALPHABET]
    base = {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "deepseek-coder",
        "tokenizer__ggml__tokens": ALPHABET,
        "tokenizer__ggml__token_type": types,
        "tokenizer__ggml__merges": [],
    }
    tokenizer = open_with(tmp_path, base)
    text = "für Größe, Ärger; õ÷ÁýÀÿøúþüùöû é"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes(ALPHABET.index("ü")) == "ü".encode()
    assert tokenizer.token_bytes(ALPHABET.index("Ġ")) == b" "
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    assert "".join([*(detokenizer.append([id_]) for id_ in ids), detokenizer.flush()]) == text


@pytest.mark.parametrize("model", ["gpt2", "llama", "gemma4"])
def test_bytes_of_each_type(tmp_path: Path, model: str) -> None:
    """What llama.cpp's token_to_piece returns for each type."""
    space = "Ġ" if model == "gpt2" else "▁"
    tokens = [
        (f"{space}a", NORMAL), ("<0x4a>", NORMAL), (f"u{space}ü", USER_DEFINED), ("c ", CONTROL),
        ("<unk>", UNKNOWN), ("spare", UNUSED), ("other", 0), ("", NORMAL), ("<0xe9>", BYTE),
    ]  # fmt: skip
    tokenizer = of_tokens(tmp_path, model, tokens, pre="gpt-2")
    found = [tokenizer.token_bytes(id_) for id_ in range(256, 256 + len(tokens))]
    assert found == [
        b" a", b"<0x4a>", f"u{space}ü".encode(), b"c ", b"<unk>", b"", b"", b"", b"\xe9",
    ]  # fmt: skip
    assert tokenizer.all_special_ids == {256 + 3, 256 + 4}
    assert tokenizer.decode([256, 259, 257]) == (" a" if model != "llama" else "a") + "<0x4a>"


@pytest.mark.parametrize("run", ["  ", "▁▁"])
@pytest.mark.parametrize("prefix", [False, True])
def test_user_defined_spaces_of_sentencepiece(tmp_path: Path, run: str, prefix: bool) -> None:
    """Newer converters spell a run of spaces as spaces, older ones as "▁▁"."""
    tokens = [("▁", NORMAL), ("a", NORMAL), (run, USER_DEFINED), ("\n\n", USER_DEFINED)]
    keys = {"add_space_prefix": prefix, "add_bos_token": False}
    tokenizer = of_tokens(tmp_path, "llama", tokens, **keys)
    assert tokenizer.encode("a   a\n\n") == [*([256] if prefix else []), 257, 258, 256, 257, 259]
    assert tokenizer.token_bytes(258) == b"  "
    for text in ["   a", " a", "  ", " ", "a  "]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_gemma4(tmp_path: Path) -> None:
    """Plain characters with merges, spaces as "▁", and bytes for the rest."""
    texts = ["▁", "a", "b", "\n", "\n\n", "▁a", "▁ab", "ü"]
    tokens = [*((text, NORMAL) for text in texts), ("<bos>", CONTROL), ("<|x|>", USER_DEFINED)]
    merges = ["▁ a", "▁a b", "\n \n"]
    tokenizer = of_tokens(tmp_path, "gemma4", tokens, merges=merges, bos_token_id=264)
    assert tokenizer.encode("ab ab\n\nüé") == [264, 257, 258, 262, 260, 263, 0xC3, 0xA9]
    assert tokenizer.encode(" a<|x|> b", False) == [261, 265, 256, 258]
    ids = tokenizer.encode("ab ab\n\nüé")
    assert tokenizer.decode(ids) == "ab ab\n\nüé"
    assert tokenizer.decode(tokenizer.encode(" a", False)) == " a"


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3", "starcoder"])
def test_random_text_survives(shared_dir: Path, name: str) -> None:
    """In one piece and token by token."""
    path = shared_dir / "tokenizers" / "parity" / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(path)
    rng = random.Random(name)
    usual = [
        "ü",
        "õ",
        "Ġ",
        "e\u0301",
        " ",
        "   ",
        "\n",
        "\r\n",
        "\t",
        "a",
        "12",
        "'s",
        "<0x41>",
        "🙂",
    ]
    ranges = [(0x20, 0x300), (0x300, 0xD800), (0x10000, 0x20000)]
    for _ in range(150):
        text = "".join(
            rng.choice(usual) if rng.random() < 0.6 else chr(rng.randrange(*rng.choice(ranges)))
            for _ in range(rng.randrange(1, 16))
        ).replace("▁", "")  # sentencepiece reads it as a space
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        detokenizer = IncrementalDetokenizer(tokenizer, [])
        parts = [detokenizer.append([id_]) for id_ in ids]
        assert "".join([*parts, detokenizer.flush()]) == text


@pytest.mark.parametrize("changes", [{"model": "bert"}, {"model": "gpt2", "pre": "unheard-of"}])
def test_unknown_kinds(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'bert'|'unheard-of'"):
        open_with(tmp_path, SPM, **changes)
