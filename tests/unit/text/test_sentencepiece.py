"""sentencepiece.py against the sentencepiece package."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizers.sentencepiece import read_vocabulary
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.examples import examples
from tests.unit.text.vocabularies import SHARED, real_tokenizer

CORPUS = [
    f"The {adjective} {animal} {verb} the garden in {year}, naïvely: 東京 {year}!"
    for adjective in ("quick", "slow", "réd", "happy")
    for animal in ("fox", "dog", "llama", "bird")
    for verb in ("sees", "leaves", "finds")
    for year in (1999, 2024)
]


def train(path: Path, **options: Any) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=buffer,
        minloglevel=3,
        **{"vocab_size": 400, "hard_vocab_limit": False, "character_coverage": 1.0} | options,
    )
    path.write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(str(path)), load_tokenizer(path)


@cache
def llama2() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(
        str(SHARED / "tokenizers" / "llama2-spm" / "tokenizer.model")
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
REPETITIVE = st.text(st.sampled_from("aab  =-\n\t▁<s>/é🦙"), max_size=80)


@settings(max_examples=examples(300), deadline=None)
@given(TEXT | REPETITIVE)
def test_llama2_cuts_as_sentencepiece(text: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared folder is not beside this checkout")
    tokenizer = real_tokenizer("sentencepiece")
    ids = tokenizer.encode_with_controls(text, [])
    assert ids == llama2().encode(text)
    assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_llama2_vocabulary(shared_dir: Path) -> None:
    vocabulary = read_vocabulary(shared_dir / "tokenizers" / "llama2-spm" / "tokenizer.model")
    oracle = llama2()
    assert len(vocabulary.pieces) == oracle.vocab_size()
    for id_, piece in enumerate(vocabulary.pieces):
        assert piece.text == oracle.id_to_piece(id_)
        assert piece.score == pytest.approx(oracle.get_score(id_))
    assert (vocabulary.bos_id, vocabulary.eos_id) == (oracle.bos_id(), oracle.eos_id())


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("extra_spaces", [True, False])
@pytest.mark.parametrize("dummy_prefix", [True, False])
def test_kinds_of_models(
    tmp_path: Path, model_type: str, byte_fallback: bool, extra_spaces: bool, dummy_prefix: bool
) -> None:
    oracle, tokenizer = train(
        tmp_path / "tokenizer.model",
        model_type=model_type,
        byte_fallback=byte_fallback,
        remove_extra_whitespaces=extra_spaces,
        add_dummy_prefix=dummy_prefix,
        normalization_rule_name="identity",
        vocab_size=600,
    )
    dice = random.Random(3)
    words = [*" ".join(CORPUS).split(), " ", "  ", "\n", "xyz", "🦙", "12", ".", "é"]
    for _ in range(300):
        text = "".join(dice.choice(words) + dice.choice([" ", "", "  "]) for _ in range(8))
        assert tokenizer.encode_with_controls(text, []) == oracle.encode(text), text
    for text in ("", " ", "   ", "a", " a ", "\n", "\n a"):
        assert tokenizer.encode_with_controls(text, []) == oracle.encode(text), repr(text)


def test_normalization_rules(tmp_path: Path) -> None:
    oracle, tokenizer = train(
        tmp_path / "tokenizer.model", model_type="unigram", normalization_rule_name="nmt_nfkc"
    )
    for text in ("Ｔｈｅ fox", "the ﬁnd", "naïve", "a\tb\nc", "①②", "  The   dog  "):
        assert tokenizer.encode_with_controls(text, []) == oracle.encode(text), text


def test_user_defined_pieces(tmp_path: Path) -> None:
    oracle, tokenizer = train(
        tmp_path / "tokenizer.model",
        model_type="bpe",
        user_defined_symbols=["[NAME]", "garden"],
        control_symbols=["<turn>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        vocab_size=500,
    )
    for text in ("The [NAME] sees", "[NAME][NAME] x", "garden gardens the garden", "a<turn>b"):
        assert tokenizer.encode_with_controls(text, []) == oracle.encode(text), text
    turn = oracle.piece_to_id("<turn>")
    assert turn in tokenizer.encode("a<turn>b")
    assert turn in tokenizer.all_special_ids


@pytest.mark.parametrize("prefix", [True, False])
def test_a_newer_tokenizer_puts_a_space_only_in_front(prefix: bool, tmp_path: Path) -> None:
    """Transformers' `legacy: false`."""
    oracle, older = train(
        tmp_path / "tokenizer.model",
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    fox = oracle.encode("fox")
    around = [oracle.bos_id(), *fox, oracle.eos_id()]
    assert older.encode("fox</s>fox") == [*around, *fox]
    settings = {"legacy": False, "add_prefix_space": prefix}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    newer = load_tokenizer(tmp_path)
    begin, end = (
        "".join(map(oracle.id_to_piece, newer.encode(text)[1:])) for text in ("fox", "</s>fox")
    )
    assert (begin, end) == ("▁fox" if prefix else "fox", "</s>fox")
    assert newer.decode(newer.encode(" fox")) == " fox"


@pytest.mark.parametrize("model_type", ["char", "word"])
def test_other_algorithms_are_refused(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="neither BPE nor unigram"):
        train(tmp_path / "tokenizer.model", model_type=model_type)


def test_damaged_files_are_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    train(path, model_type="bpe")
    whole = path.read_bytes()
    dice = random.Random(5)
    for _ in range(300):
        raw = bytearray(whole[: dice.randrange(len(whole))])
        for _ in range(dice.randint(0, 3)):
            if raw:
                raw[dice.randrange(len(raw))] = dice.randrange(256)
        path.write_bytes(raw)
        try:
            load_tokenizer(path)
        except CheckpointError:
            continue
    for raw in (b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 20, b"\x0b\x01"):
        path.write_bytes(raw)
        with pytest.raises(CheckpointError, match=r"tokenizer.model cannot be read"):
            load_tokenizer(path)
