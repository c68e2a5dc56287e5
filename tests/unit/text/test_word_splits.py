"""word_splits.py: every kind of `tokenizer.ggml.pre`, by cases derived from its pattern by hand."""

from __future__ import annotations

import pytest

from quire.text.tokenizers.byte_level import _PROBE, _pre_tokenizer
from quire.text.tokenizers.word_splits import SPLITS

CASES = {
    "gpt-2": ("I'll x12  y!\n", ["I", "'ll", " x", "12", " ", " y", "!", "\n"]),
    "llama-bpe": ("I'LL x1234!\n\n a", ["I", "'LL", " x", "123", "4", "!\n\n", " a"]),
    "qwen2": ("x12 e\u0301s", ["x", "1", "2", " e", "\u0301s"]),
    "qwen35": ("x12 e\u0301s?\u0301", ["x", "1", "2", " e\u0301s", "?\u0301"]),
    "ufakzeka": ("Ali'sin 'll", ["Ali", "'sin", " '", "ll"]),
    "laguna": ("a!\nb", ["a", "!", "\n", "b"]),
    "seed-coder": ("a!\nb", ["a", "!", "\n", "b"]),
    "bailingmoe": ("a!\nb\n\nc", ["a", "!\n", "b", "\n\n", "c"]),
    "exaone-moe": ("a b\u0301 c 1!/\n\n", ["a b\u0301 c", " ", "1", "!/\n", "\n"]),
    "minicpm5": ("a  1234", ["a", "  ", "123", "4"]),
    "jais-2": ("a     b", ["a", "    ", " b"]),
    "starcoder": ("a12", ["a", "1", "2"]),
    "tekken": ("fooBARbaz I'm 12", ["foo", "BARbaz", " I", "'m", " ", "1", "2"]),
    "gpt-4o": ("I'm fooBar 1234/\n", ["I'm", " foo", "Bar", " ", "123", "4", "/\n"]),
    "tiny_aya": ("a1234567", ["a", "1", "234", "567"]),
    "youtu": ("a북한、b北c1", ["a", "북한", "、", "b", "北", "c", "1"]),
    "kimi-k2": ("a北京b c12345", ["a", "北京", "b", " c", "123", "45"]),
    "superbpe": ("a b 1234567", ["a b ", "1", "234", "567"]),
    "falcon": ("a+=1234", ["a", "+=", "123", "4"]),
    "deepseek-llm": ("a 北b 12\u3002ჰ  ", ["a", " ", "北", "b", " ", "12", "\u3002", "ჰ", "  "]),
    "deepseek-coder": ("ab, 1ü", ["ab", ",", " ", "1", "ü"]),
    "deepseek-v3": ("a1234北 .\n", ["a", "123", "4", "北", " .\n"]),
    "spark2_5": ("a !\n\nb", ["a", " !", "\n", "\n", "b"]),
    "bloom": ("ab cd, (e|f)", ["ab", " cd", ", (", "e", "|", "f", ")"]),
    "viking": ("a12 b", ["a", "1", "2", " b"]),
    "chameleon": ("IMGIMGABZ a  b1", ["IMGIMGABZ", " a", "  ", "b", "1"]),
    "gemma4": ("a b\n\nc", ["a b", "\n\n", "c"]),
    "default": ("a1234$b", ["a", "123", "4", "$", "b"]),
}  # fmt: skip


def words(kind: str, text: str) -> list[str]:
    pieces = _pre_tokenizer(SPLITS[kind]).pre_tokenize_str(text)
    return [text[start:stop] for _, (start, stop) in pieces]


@pytest.mark.parametrize("kind", CASES)
def test_words(kind: str) -> None:
    text, expected = CASES[kind]
    assert words(kind, text) == expected


def test_every_rule_has_a_case() -> None:
    tested = {SPLITS[kind].patterns for kind in CASES}
    assert {split.patterns for split in SPLITS.values()} == tested


def test_export_tells_every_rule_from_every_other() -> None:
    """`kind_of` names a rule by how it splits one text."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, split in SPLITS.items():
        if not split.escapes_spaces:
            cut = repr(words(kind, _PROBE))
            assert found.setdefault(cut, split.patterns) == split.patterns, kind
