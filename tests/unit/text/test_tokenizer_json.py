"""tokenizer_json.py: the same tokenizer as the library's own reader gives."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from quire.core.errors import CheckpointError
from quire.text.tokenizers import tokenizer_json
from quire.text.tokenizers.tokenizer_json import read_large, read_tokenizer_json


def backend(letters: str, seed: int, **options: Any) -> tokenizers.Tokenizer:
    """Return a BPE of random merges, with every kind of stage and added tokens of all flags."""
    rng = random.Random(seed)
    tokens, merges = list(letters), []
    while len(tokens) < 400:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    rng.shuffle(tokens)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, **options))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])
    split = pre_tokenizers.Split(Regex(r"\d|\s+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False)])
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
    {"dropout": 0.5, "ignore_merges": True},
]


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_equals_the_library(
    options: dict[str, Any], older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    letters = "abcĠ\"\\é😀'],[" + ("" if older else " \n\0")
    monkeypatch.setattr(tokenizer_json, "SLICE_BYTES", 100)  # cuts inside tokens such as ],
    spelled(path, backend(letters, len(options), **options), older)
    read = read_large(path)
    library = tokenizers.Tokenizer.from_file(str(path))
    assert read.to_str() == library.to_str()
    assert read.encode("a<s> bac</s>é😀").ids == library.encode("a<s> bac</s>é😀").ids or options


@pytest.mark.parametrize("older", [False, True])
def test_few_merges_exist_at_a_time(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"{i}],", f'",{i}') for i in range(1000)]
    text = json.dumps([" ".join(pair) for pair in pairs] if older else pairs).encode()
    monkeypatch.setattr(tokenizer_json, "SLICE_BYTES", 256)
    merges = tokenizer_json._Merges({}, text)
    slices, begin = [], 1
    while begin < len(text):
        some, begin = merges._slice(begin)
        slices.append(some)
    assert [pair for some in slices for pair in some] == pairs
    assert max(map(len, slices)) < 40


def _no_merge(content: dict[str, Any]) -> None:
    content["model"]["merges"].append(["a", "zz"])


def _three_halves(content: dict[str, Any]) -> None:
    content["model"]["merges"] = ["a b", "a b c"]


def _version(content: dict[str, Any]) -> None:
    content["model"]["merges"] = ["#version: 0.2", "a b"]
    content["model"]["vocab"]["ab"] = 500


def _other_id(content: dict[str, Any]) -> None:
    content["added_tokens"][-1]["id"] += 7


def _unigram(content: dict[str, Any]) -> None:
    content["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
    content["added_tokens"] = []
    content["post_processor"] = None


def _unknown_option(content: dict[str, Any]) -> None:
    content["model"]["later"] = 1


@pytest.mark.parametrize(
    "change", [_no_merge, _three_halves, _version, _other_id, _unigram, _unknown_option]
)
def test_leaves_the_rest_to_the_library(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    content = spelled(path, backend("abc", 1), False)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, the library decides
        read_large(path)
    monkeypatch.setattr(tokenizer_json, "SMALL_BYTES", 0)
    try:
        expected = tokenizers.Tokenizer.from_file(str(path)).to_str()
    except Exception as refused:
        expected = f"{path.name} cannot be read: {refused}. Download or copy the file again."
    try:
        found = read_tokenizer_json(path).to_str()
    except CheckpointError as error:
        found = str(error)
    assert found == expected
