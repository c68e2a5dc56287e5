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

_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _OLDEST, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "starcoder": (r"\p{N}", _GPT2),
    "smollm": (r"\p{N}", _GPT2),
}
"""How text is cut into words, by GGUF's `tokenizer.ggml.pre`: each pattern cuts what the one
before it left."""

_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3"}
"""Kinds in which a word that is a token needs no merges to become it."""


def byte_level_backend(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], kind: str
) -> tokenizers.Tokenizer:
    """A byte-level BPE over `vocabulary` whose words are cut as `kind` says.

    Raises:
        UnsupportedModelError: `kind` is unknown.
        CheckpointError: a merge makes a token that the vocabulary lacks.
    """
    if kind not in _SPLITS:
        raise UnsupportedModelError(
            f"The tokenizer cuts words in a way called {kind!r}.",
            fix=f"Quire knows {', '.join(sorted(_SPLITS))}; use the model's Hugging Face folder.",
        )
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=kind in _WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"The vocabulary and the merges do not belong together: {error}.",
            fix="Download or convert the tokenizer again.",
        ) from error
    backend = tokenizers.Tokenizer(model)
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[kind]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


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
