"""token_bytes.py: decoders as the `tokenizers` library describes them."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models

from quire.core.errors import UnsupportedModelError
from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.tokenizers.token_bytes import BYTE_OF_CHAR, TokenDecoder


def decoder_of(decoder: decoders.Decoder | None) -> TokenDecoder:
    backend = tokenizers.Tokenizer(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    return TokenDecoder.of(backend)


def test_the_byte_alphabet_is_gpt2s() -> None:
    assert sorted(BYTE_OF_CHAR.values()) == list(range(256))
    assert set(BYTE_OF_CHAR) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert decoder_of(decoders.ByteLevel()).token_bytes("Ġthé") == b" th\xe9"
    assert decoder_of(decoders.ByteLevel()).token_bytes("two words") == b"two words"


def test_sentencepiece_like() -> None:
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    decoder = decoder_of(decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)]))
    assert decoder.strips_leading_space
    assert not decoder_of(decoders.Sequence(stages)).strips_leading_space
    assert decoder.token_bytes("▁the") == b" the"
    assert decoder.token_bytes("<0xF0>") == b"\xf0"
    assert decoder.token_bytes("<0xZZ>") == b"<0xZZ>"


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace(scheme: str) -> None:
    decoder = decoder_of(decoders.Metaspace("▁", scheme))
    assert decoder.token_bytes("▁a") == b" a"
    assert decoder.strips_leading_space == (scheme != "never")


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Metaspace("▁", "always"),
        decoders.WordPiece(),
        None,  # a space between any two
    ],
)
def test_added_tokens_decode_as_the_library_decodes_them(
    decoder: decoders.Decoder | None,
) -> None:
    """tokenizer.json: the decoder sees added tokens too, special or not."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        backend.decoder = decoder
    added = ["grün", "ĠĠ", "x▁y", "<0x41>", "<0xg1>", "<0x4a>", "##s", "two words", "北"]
    backend.add_tokens(added)
    backend.add_special_tokens(["<|ü|>", "<▁s▁>", "[CLS]"])
    tokenizer = HFTokenizer(TokenizerFiles(backend))
    for id_ in range(1, tokenizer.vocab_size):
        for ids in ([0, id_], [0, id_, 0]):  # a text's first token has rules of its own
            assert tokenizer.decode(ids, False) == backend.decode(ids, skip_special_tokens=False)


def test_decoders_that_join_tokens_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="The tokenizer's decoder is"):
        decoder_of(decoders.Strip("x", 1, 1))
    with pytest.raises(UnsupportedModelError, match="which cannot be applied token by token"):
        decoder_of(decoders.Strip(" ", 1, 0))  # before Fuse, of each token


def test_wordpiece() -> None:
    library = decoders.WordPiece()
    decoder = decoder_of(library)
    assert decoder.strips_leading_space
    tokens = ["run", "##ning", "isn", "'", "t", "so", "."]
    joined = b"".join(decoder.token_bytes(token) for token in tokens).decode()
    assert joined == " " + library.decode(tokens)
