"""least_tokens: never more than a text has, with every kind of tokenizer."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

import quire
from quire.text.least_tokens import _NFC_SHRINKS, least_tokens
from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.examples import examples
from tests.unit.text.vocabularies import REAL, real_tokenizer

LONG = " aeiou" * 8
SHRINKING = "가각힣 Å ̈ḯᾪ῁΅K \u1fef"
TEXT = st.lists(
    st.sampled_from(["<|end|>", "<|bare|>", LONG, " ", "\n\t\u3000", "the", *SHRINKING])
    | st.text(max_size=8),
    max_size=12,
).map("".join)


def byte_level(
    normalizer: normalizers.Normalizer | None = None, *, strips: bool = False
) -> HFTokenizer:
    """Every byte, and one long token of spaces and vowels."""
    letters = [*CHAR_OF_BYTE.values()]
    long = LONG.replace(" ", CHAR_OF_BYTE[0x20])
    parts = [long[:length] for length in range(2, len(long) + 1)]
    vocabulary = {token: index for index, token in enumerate([*letters, *parts])}
    merges = [(part[:-1], part[-1]) for part in parts]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens(
        [
            AddedToken("<|end|>", lstrip=strips, rstrip=strips, normalized=False),
            AddedToken("<|bare|>", normalized=False),
        ]
    )
    return HFTokenizer(TokenizerFiles(backend))


def fallback(normalizer: normalizers.Normalizer | None = None) -> HFTokenizer:
    """Sentencepiece's bytes, "▁" and one word."""
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁the", "th", "the", "▁the"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    backend = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, merges, byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizer or normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    return HFTokenizer(TokenizerFiles(backend))


def without_bytes() -> HFTokenizer:
    """A byte-level vocabulary that lacks those of most letters."""
    kept = {char: index for index, char in enumerate([*CHAR_OF_BYTE.values()][:200:3])}
    backend = tokenizers.Tokenizer(models.BPE(kept, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return HFTokenizer(TokenizerFiles(backend))


def word_pieces(normalizer: normalizers.Normalizer | None = None) -> HFTokenizer:
    """BERT's, whose tokens drop white space, control characters and accents."""
    tokens = ["[UNK]", "the", "a", "##a", *"abcdef"]
    model = models.WordPiece(
        {token: index for index, token in enumerate(dict.fromkeys(tokens))}, unk_token="[UNK]"
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizer or normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True)])
    return HFTokenizer(TokenizerFiles(backend))


BOUNDED = {
    "word pieces": word_pieces(),
    "word pieces, composed": word_pieces(normalizers.NFKC()),
    "lacking bytes": without_bytes(),
    "byte level": byte_level(),
    "composing": byte_level(normalizers.NFC()),
    "stripping": byte_level(strips=True),
    "composing and stripping": byte_level(normalizers.NFC(), strips=True),
    "byte fallback": fallback(),
}


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=examples(60), deadline=None)
@given(text=TEXT)
def test_never_more_than_there_are(name: str, text: str) -> None:
    tokenizer = BOUNDED[name]
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", BOUNDED)
def test_a_long_text_has_many_tokens(name: str) -> None:
    """At most the longest token's share of what there are, in the worst case."""
    assert BOUNDED[name].least_tokens("the aeiou " * 100_000) >= 1_000_000 / 64


@pytest.mark.parametrize(
    "backend",
    [
        word_pieces(normalizers.Replace(" ", "")).backend,
        word_pieces(normalizers.Strip()).backend,
    ],
)
def test_words_that_may_be_joined_are_not_counted(backend: tokenizers.Tokenizer) -> None:
    assert least_tokens(backend) is None
    plain = word_pieces().backend
    plain.add_special_tokens([AddedToken("two words")])
    assert least_tokens(plain) is None


@pytest.fixture(scope="module", params=["story", *REAL])
def real(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "story":
        return load_tokenizer(Path(quire.__file__).parent / "assets/story")
    return real_tokenizer(request.param)


@settings(max_examples=examples(100), deadline=None)
@given(text=TEXT)
def test_real_tokenizers(real: Tokenizer, text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert real.least_tokens(text) <= len(real.encode(text, add_special_tokens=False))


def test_real_tokenizers_on_their_longest_tokens(real: Tokenizer) -> None:
    texts = [real.token_bytes(i).decode(errors="replace") for i in range(real.vocab_size)]
    for text in sorted(texts, key=len)[-50:]:
        for many in (text, text * 7, f"a{text}\n{text}"):
            found = len(real.encode(many, add_special_tokens=False))
            assert real.least_tokens(many) <= found
    no_bytes = real.token_to_id("<unk>") is not None and real.token_to_id("<0x41>") is None
    assert (real.least_tokens("word " * 100_000) > 1000) == (not no_bytes)


@pytest.mark.parametrize(
    "backend",
    [
        byte_level(normalizers.NFKC()).backend,
        byte_level(normalizers.Strip()).backend,
        byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])).backend,
        fallback(normalizers.Replace(Regex(" +"), "▁")).backend,
        fallback(normalizers.Replace("abc", "")).backend,
        tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
        tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)),
        tokenizers.Tokenizer(models.BPE({"a": 0}, [])),
    ],
)
def test_nothing_is_claimed_where_text_may_vanish(backend: tokenizers.Tokenizer) -> None:
    assert least_tokens(backend) is None


def test_removed_white_space_is_not_claimed() -> None:
    backend = byte_level().backend
    cut = pre_tokenizers.Split(" ", "removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert HFTokenizer(TokenizerFiles(backend)).least_tokens("a b " * 1000) == 0


def test_composing_shrinks_no_character_more_than_claimed() -> None:
    """A composed text is no shorter than its shortest decomposition allows, character by character.

    NFC of a text is NFC of its NFD. So a character of the result comes of the characters whose
    decompositions make up its own; each of them is at most `_NFC_SHRINKS` bytes long per byte.
    """
    longest: dict[str, int] = {}  # of the spellings of a decomposed character, bytes
    for code in range(0x30000):  # nothing is decomposed, or composed, beyond
        char = chr(code)
        if not 0xD800 <= code < 0xE000:
            whole = unicodedata.normalize("NFD", char)
            if len(whole) == 1:
                longest[whole] = max(longest.get(whole, 0), len(char.encode()))
    for code in range(0x30000):
        char = chr(code)
        if 0xD800 <= code < 0xE000 or unicodedata.normalize("NFC", char) != char:
            continue
        spelled = sum(longest[part] for part in unicodedata.normalize("NFD", char))
        assert spelled <= _NFC_SHRINKS * len(char.encode()), f"U+{code:04X}"
