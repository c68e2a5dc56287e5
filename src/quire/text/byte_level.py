"""Byte-level BPE (GPT-2 and its descendants) from a vocabulary and a list of merges."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from quire.core.errors import CheckpointError, UnsupportedModelError

_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"'(?i:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_OLDEST = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

_CASED = (  # words of lower case, then of upper case, each with what may stand before and behind
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = _CASED % ("", "") + r"|\p{N}" + _AFTER_WORDS
_GPT4O = _CASED % (_CONTRACTION, _CONTRACTION) + r"|\p{N}{1,3}" + _AFTER_WORDS
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS_APART = (r"\p{N}", _GPT2)

_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _OLDEST, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), (_GPT2,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), (_LLAMA3,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), (_QWEN2,)),
    **dict.fromkeys(("starcoder", "smollm", "refact", "command-r"), _DIGITS_APART),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), _DIGITS_APART),
    "tekken": (_TEKKEN,),
    "gpt-4o": (_GPT4O,),
    "llama4": (_GPT4O,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _OLDEST, "[0-9][0-9][0-9]"),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
}
"""How text is cut into words, by GGUF's `tokenizer.ggml.pre`: each pattern cuts what the one
before it left."""

_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}
"""Kinds in which a word that is a token needs no merges to become it."""
STARTS_WITH_BOS = _WHOLE_WORDS_FIRST
"""Kinds that begin every text with BOS where the file does not say."""
_COMPOSED = {"qwen2", "deepseek-r1-qwen"}
"""Kinds that compose characters first (NFC)."""


def byte_level_backend(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], kind: str, file: str
) -> tokenizers.Tokenizer:
    """A byte-level BPE over `vocabulary` whose words are cut as `kind` says.

    Args:
        file: where the vocabulary was read, for errors.

    Raises:
        UnsupportedModelError: `kind` is unknown.
        CheckpointError: a merge makes a token that the vocabulary lacks.
    """
    if kind not in _SPLITS:
        raise UnsupportedModelError(
            f"{file}: the tokenizer cuts words in a way called {kind!r}.",
            fix=f"Quire knows {', '.join(sorted(_SPLITS))}; use the model's Hugging Face folder.",
        )
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=kind in _WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{file}: the vocabulary and the merges do not belong together: {error}.",
            fix="Download or convert the tokenizer again.",
        ) from error
    backend = tokenizers.Tokenizer(model)
    if kind in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(kind)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[kind]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PROBE = (
    "I'll SAY we'VE 3 cats, 4567890 DogsAndMice's e\u0301 naïve-ÉTÉ; x=(a+b)/2; <=> ~|` $1\n\n"
    "  for i in range(10):\n\tprint('ok')  \r\n   北京ひらがな 한국어 ١٢٣ ½ 🙂👍🏽 _id"
    " __init__/usr/bin  \n \t "
)
"""A text that each way of cutting cuts differently."""


def kind_of(backend: tokenizers.Tokenizer) -> str:
    """The name in `tokenizer.ggml.pre` of the way in which a byte-level tokenizer cuts words.

    Raises:
        UnsupportedModelError: it is none that Quire knows.
    """
    composes = backend.normalizer is not None
    found = backend.pre_tokenizer.pre_tokenize_str(_PROBE)
    whole_words = bool(getattr(backend.model, "ignore_merges", False))
    for kind in _SPLITS:
        if (
            (kind in _COMPOSED) == composes
            and (kind in _WHOLE_WORDS_FIRST) == whole_words
            and _pre_tokenizer(kind).pre_tokenize_str(_PROBE) == found
        ):
            return kind
    raise UnsupportedModelError(
        "The tokenizer cuts words in a way that has no name in GGUF.",
        fix="Write compressed-tensors instead.",
    )


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The merges of a merges.txt, first the one that is applied first."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read.", fix="It belongs beside vocab.json; download it again."
        ) from error
    if lines[0].startswith("#version"):
        lines = lines[1:]
    merges = []
    for line in lines:
        if line:
            left, space, right = line.partition(" ")
            if not (left and space and right) or " " in right:
                raise CheckpointError(
                    f"{path.name} holds {line[:40]!r}, which is no pair.", fix="Download it again."
                )
            merges.append((left, right))
    return merges
