"""tokenizer_json.py: the same tokenizer as the library's own reader gives."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from quire import _native
from quire.core.errors import CheckpointError
from quire.text.least_tokens import least_tokens
from quire.text.tokenizers import tokenizer_json
from quire.text.tokenizers.hf_tokenizer import UNLOCKED_CHARACTERS, HFTokenizer, TokenizerFiles
from quire.text.tokenizers.tokenizer_json import read_byte_pairs, read_tokenizer_json
from tests.unit.text.vocabularies import real_tokenizer


def backend(letters: str, seed: int, **options: Any) -> tokenizers.Tokenizer:
    """Return a BPE of random merges, with every kind of stage and added tokens of all flags."""
    rng = random.Random(seed)
    tokens, merges = [*letters, "<0xC3>", "<0xBC>"], []
    while len(tokens) < 400:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if left + right not in tokens:
            tokens.append(left + right)
        if len(left + right) < 12:  # some make a token that others make, too
            merges.append((left, right))
    rng.shuffle(tokens)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, **options))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    split = pre_tokenizers.Split(Regex(r"\d|\s+"), "isolated")
    made.pre_tokenizer = split
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken("<tool>", rstrip=True), tokens[7]])
    made.add_special_tokens([AddedToken("<s>", normalized=True), AddedToken("</s>", lstrip=True)])
    made.post_processor = processors.TemplateProcessing(
        "<s> $A", "<s> $A $B:1 </s>:1", [("<s>", 401), ("</s>", 402)]
    )
    return made


def spelled(path: Path, made: tokenizers.Tokenizer, older: bool) -> dict[str, Any]:
    """Write tokenizer.json, with merges as "left right" if `older`; return what it holds."""
    content: dict[str, Any] = json.loads(made.to_str())
    if older:
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    path.write_text(json.dumps(content, indent=2, ensure_ascii=older), encoding="utf-8")
    return content


OPTIONS: list[dict[str, Any]] = [
    {},
    {"unk_token": "a", "fuse_unk": True, "byte_fallback": True},
    {"unk_token": "b", "ignore_merges": True},
]
LETTERS = "abcĠ\"\\é😀'],["


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_equals_the_library(options: dict[str, Any], older: bool, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    letters = LETTERS + ("" if older else " \n\0")
    spelled(path, backend(letters, len(options), **options), older)
    pipeline, table = read_byte_pairs(path)
    read = HFTokenizer(TokenizerFiles(pipeline, {"bos_token": "<s>"}, table=table))
    library = HFTokenizer(
        TokenizerFiles(tokenizers.Tokenizer.from_file(str(path)), {"bos_token": "<s>"})
    )
    assert read.backend.to_str() == tokenizers.Tokenizer.from_file(str(path)).to_str()
    for name in ("vocab_size", "bos_token_id", "all_special_ids", "special_token_strings"):
        assert getattr(read, name) == getattr(library, name)
    for id_ in range(-1, read.vocab_size + 1):
        assert read.id_to_token(id_) == (token := library.id_to_token(id_))
        assert read.token_bytes(id_) == library.token_bytes(id_)
        assert token is None or read.token_to_id(token) == library.token_to_id(token)
    rng = random.Random(7)
    parts = [*letters, *"ü1 \U0010ffff", " <tool> ", "<s>", " </s>"]
    parts += [read.id_to_token(7) or "", read.id_to_token(9) or ""]
    for length in range(0, 160, 4):
        text, other = ("".join(rng.choices(parts, k=k)) for k in (length, 9))
        assert read.encode(text) == library.encode(text)
        bounds = other, rng.randrange(5, 40), rng.choice(["left", "right"])
        assert read.encode_bounded(text, *bounds) == library.encode_bounded(text, *bounds)
        controls = [(at.start(), at.end()) for at in re.finditer("</s>", text)][1:]
        found = read.encode_with_controls(text, controls)
        assert found == library.encode_with_controls(text, controls)
        assert read.least_tokens(text) == library.least_tokens(text)
    long = "".join(rng.choices(parts, k=2 * UNLOCKED_CHARACTERS))
    assert read.encode(long) == library.encode(long)


@pytest.mark.parametrize("name", ["tokenizer.json", "gguf gpt-2", "gguf phi-3"])
def test_real_vocabularies(name: str, tmp_path: Path) -> None:
    library = real_tokenizer(name)
    assert isinstance(library, HFTokenizer)
    if not isinstance(library.backend.model, models.BPE):
        pytest.skip("no BPE")
    library.backend.save(str(tmp_path / "tokenizer.json"))
    pipeline, table = read_byte_pairs(tmp_path / "tokenizer.json")
    read = HFTokenizer(TokenizerFiles(pipeline, table=table))
    text = Path(__file__).read_text(encoding="utf-8") + "naïve 北京 \u0301 🦙🏽 \x7f"
    expected = library.backend.encode(text, add_special_tokens=False).ids
    assert read.encode(text, add_special_tokens=False) == expected
    bound = least_tokens(library.backend)
    assert read.least_tokens(text) == (bound(text) if bound else 0)


def _no_merge(content: dict[str, Any]) -> None:
    content["model"]["merges"].append(["a", "zz"])


def _three_halves(content: dict[str, Any]) -> None:
    content["model"]["merges"] = ["a b", "a b c"]


def _version(content: dict[str, Any]) -> None:
    content["model"]["merges"] = ["#version: 0.2", "a b"]
    content["model"]["vocab"]["ab"] = 500


def _other_id(content: dict[str, Any]) -> None:
    content["added_tokens"][-1]["id"] += 7


def _dropout(content: dict[str, Any]) -> None:
    content["model"]["dropout"] = 0.5


def _suffix(content: dict[str, Any]) -> None:
    content["model"] |= {"vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}
    content["added_tokens"] = []
    content["post_processor"] = None


def _no_unknown(content: dict[str, Any]) -> None:
    content["model"]["unk_token"] = "no token"


def _half_a_pair(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["\ud800"] = 500


def _unigram(content: dict[str, Any]) -> None:
    content["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
    content["added_tokens"] = []
    content["post_processor"] = None


def _unknown_option(content: dict[str, Any]) -> None:
    content["model"]["later"] = 1


@pytest.mark.parametrize(
    "change",
    [_no_merge, _three_halves, _version, _other_id, _dropout, _suffix, _no_unknown,
     _half_a_pair, _unigram, _unknown_option],
)  # fmt: skip
def test_leaves_the_rest_to_the_library(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    content = spelled(path, backend("abc", 1), False)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, the library decides
        read_byte_pairs(path)
    monkeypatch.setattr(tokenizer_json, "SMALL_BYTES", 0)
    try:
        expected = tokenizers.Tokenizer.from_file(str(path)).to_str()
    except Exception as refused:
        expected = f"{path.name} cannot be read: {refused}. Download or copy the file again."
    try:
        found = read_tokenizer_json(path)[0].to_str()
    except CheckpointError as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize("damage", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\x01", b"\\x"])
def test_damaged_text_is_no_token(damage: bytes) -> None:
    with pytest.raises(ValueError, match=r"Unicode|JSON"):
        _native.BytePairs(b'{"' + damage + b'": 0}', b"[]", "", False, False, False)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a"', b'{"a":', b'{"a":0', b'{"a":0,}', b'{"a":-1}']
)
def test_damaged_json_is_no_vocabulary(text: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        _native.BytePairs(text, b"[]", "", False, False, False)


@pytest.mark.parametrize("text", [b'{"a":0,"b":0}', b'{"a":0,"a":1}'])
def test_a_token_or_an_id_that_comes_twice_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="comes twice"):
        _native.BytePairs(text, b"[]", "", False, False, False)
