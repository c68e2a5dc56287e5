r"""How byte-level BPE splits text into words, by GGUF's `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json, in Oniguruma's syntax: `(?i:…)` ignores
case, `&&` intersects two sets, `\p{…}` is a Unicode property.
"""

from __future__ import annotations

from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class WordSplit:
    """How one kind of tokenizer splits text.

    Attributes:
        patterns: each splits what the one before it left. A match is one word.
        whole_words: a word that is a token needs no merges.
        starts_with_bos: every text begins with BOS if the file does not say.
        composes: characters are composed first (NFC).
        escapes_spaces: a space becomes "▁", and characters without a token become byte tokens;
            otherwise tokens are spelled in GPT-2's byte alphabet.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    starts_with_bos: bool = False
    composes: bool = False
    escapes_spaces: bool = False


_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_OLDEST = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGITS_APART = (r"\p{N}", _GPT2)

_ENGLISH = r"'(?i:s|t|re|ve|m|ll|d)|"
_SPACES = r"|\s+(?!\S)|\s+"
_UNCONTRACTED = (  # words, numbers of %s digits, punctuation, line ends, spaces
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _SPACES
)
_LLAMA3 = _ENGLISH + _UNCONTRACTED % "{1,3}"
_QWEN2 = _ENGLISH + _UNCONTRACTED % ""
_QWEN35 = (
    _ENGLISH
    + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + _SPACES
)
_SEED_CODER = (
    _ENGLISH + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+" + _SPACES
)
_EXAONE_MOE = (
    _ENGLISH
    + r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
    + _SPACES
)
_JAIS2 = _LLAMA3.removesuffix(_SPACES) + "".join(
    rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")
) + r"|\s"  # fmt: skip

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _cased(behind: str, without: str = "") -> str:
    """Words of lower case, then of upper case, each with what may stand before and behind."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{behind}|{before}{upper}+{lower}*{behind}"


_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + _SPACES
_TEKKEN = _cased("") + r"|\p{N}" + _AFTER_WORDS
_GPT4O = _cased(_CONTRACTION) + r"|\p{N}{1,3}" + _AFTER_WORDS
_YOUTU = _cased(_CONTRACTION) + r"|\p{N}" + _AFTER_WORDS
_KIMI_K2 = (
    r"\p{Han}+|"
    + _cased(_CONTRACTION, r"&&[^\p{Han}]")
    + r"|\p{N}{1,3}"
    + _AFTER_WORDS.replace(r"[\r\n/]*", r"[\r\n]*")
)

_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_IDEOGRAPHS = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _IDEOGRAPHS, _DEEPSEEK3_WORDS + r"[\r\n]*|\s*[\r\n]+" + _SPACES)
_DEEPSEEK_EAST = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LLM_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴ"
    "ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_LINES = r"[^\n]+|\n+"

SPLITS: dict[str, WordSplit] = {
    "default": WordSplit((r"[\p{P}\$\+<=>\^~\|]+", _OLDEST, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
         "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code",
         "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert"),
        WordSplit((_GPT2,)),
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
         "jina-v5-nano"),
        WordSplit((_LLAMA3,), whole_words=True, starts_with_bos=True),
    ),
    **dict.fromkeys(("glm4", "glm5"), WordSplit((_LLAMA3,), whole_words=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), WordSplit((_LLAMA3,))),
    "minicpm5": WordSplit((r"\p{N}{1,3}", _ENGLISH + _UNCONTRACTED % "+"), whole_words=True),
    "jais-2": WordSplit((_JAIS2,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), WordSplit((_QWEN2,), composes=True)),
    **dict.fromkeys(
        ("stablelm2", "hunyuan", "kormo", "f2llmv2", "megrez", "solar-open", "grok-2",
         "bailingmoe", "bailingmoe2", "llada-moe"),
        WordSplit((_QWEN2,)),
    ),
    "qwen35": WordSplit((_QWEN35,)),  # llama.cpp's cases want decomposed characters as they are
    "ufakzeka": WordSplit((_UNCONTRACTED % "",)),
    "laguna": WordSplit((_LINES, _QWEN2)),
    "seed-coder": WordSplit((_SEED_CODER,)),
    "exaone-moe": WordSplit((_EXAONE_MOE,)),
    **dict.fromkeys(
        ("starcoder", "smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"),
        WordSplit(_DIGITS_APART),
    ),
    "tekken": WordSplit((_TEKKEN,), whole_words=True, starts_with_bos=True),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), WordSplit((_GPT4O,))
    ),
    "granite-embed-multi-97m": WordSplit((_GPT4O,), whole_words=True),
    **dict.fromkeys(
        ("tiny_aya", "cohere2moe"), WordSplit((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))
    ),
    "youtu": WordSplit(
        ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _IDEOGRAPHS, _YOUTU),
        whole_words=True,
    ),
    "kimi-k2": WordSplit((_KIMI_K2,)),
    "superbpe": WordSplit((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "falcon": WordSplit((r"[\p{P}\$\+<=>\^~\|`]+", _OLDEST, "[0-9][0-9][0-9]")),
    "deepseek-llm": WordSplit(
        ("[\r\n]", rf"\s?[{_DEEPSEEK_LLM_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
         _DEEPSEEK_EAST, r"\p{N}+"),
    ),
    "deepseek-coder": WordSplit(
        ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_EAST, r"\p{N}")
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), WordSplit(_DEEPSEEK3)),
    "spark2_5": WordSplit(
        (r"\p{N}{1,3}", _IDEOGRAPHS, _DEEPSEEK3_WORDS + r"|[\r\n]" + _SPACES, r"\p{N}")
    ),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), WordSplit((_BLOOM,))),
    "viking": WordSplit((_BLOOM, r"\p{N}")),
    "chameleon": WordSplit(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}",
         r"[\p{P}!-/:-@\[-`{-~]", _OLDEST),
        starts_with_bos=True,
    ),
    **dict.fromkeys(
        ("gemma4", "granite-embed-multi-311m"),
        WordSplit((_LINES,), starts_with_bos=True, escapes_spaces=True),
    ),
    "sarvam-moe": WordSplit((_LINES,), escapes_spaces=True),
}  # fmt: skip
"""Kinds with the same rule share one object. `afmoe`, `whitespace` and `hybriddna` are missing:
their rules are not patterns."""
