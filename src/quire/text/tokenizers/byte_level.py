"""BPE (GPT-2 and its descendants, Gemma 4) from a vocabulary and a list of merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizers.sentencepiece import SPACE
from quire.text.tokenizers.word_splits import SPLITS, WordSplit


def bpe_backend(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], kind: str, file: str
) -> tokenizers.Tokenizer:
    """Return a BPE over `vocabulary` that splits text as `kind` (a key of `SPLITS`) says.

    Args:
        file: the vocabulary's file, for error messages.

    Raises:
        UnsupportedModelError: `kind` is unknown.
        CheckpointError: a merge makes a token that the vocabulary lacks.
    """
    if kind not in SPLITS:
        raise UnsupportedModelError(
            f"{file}: the tokenizer splits words in a way called {kind!r}, which Quire lacks.",
            fix="Use the model's Hugging Face folder, or name its tokenizer with --tokenizer. "
            "docs/gguf.md lists the known names.",
        )
    return split_bpe(vocabulary, merges, SPLITS[kind], file)


def split_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], split: WordSplit, file: str
) -> tokenizers.Tokenizer:
    """Return a BPE over `vocabulary` that splits text by `split`; raises as `bpe_backend`."""
    try:
        model = models.BPE(
            vocabulary, merges, ignore_merges=split.whole_words, byte_fallback=split.escapes_spaces
        )
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{file}: the vocabulary and the merges do not belong together: {error}.",
            fix="Download or convert the tokenizer again.",
        ) from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _pre_tokenizer(split)
    if split.escapes_spaces:
        backend.normalizer = normalizers.Replace(" ", SPACE)
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        if split.composes:
            backend.normalizer = normalizers.NFC()
        backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(split: WordSplit) -> pre_tokenizers.PreTokenizer:
    stages: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns
    ]
    if not split.escapes_spaces:
        stages.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(stages)


_PROBE = (
    "I'll SAY we'VE 3 cats, 4567890 DogsAndMice's e\u0301 naïve-ÉTÉ; x=(a+b)/2; <=> ~|` $1\n\n"
    "  for i in range(10):\n\tprint('ok')  \r\n   北京ひらがな 한국어 ١٢٣ ½ 🙂👍🏽 _id"
    " __init__/usr/bin  \n \t "
    "x;\n\ny!/\r\n z\u0300a b  c   d\u0301's?!\n \n\n  \n"
    "12 123,4567 KIÀlo’s “ok”。IMGIMGABZ ʔ ჰ  12    d x'sx"
    "\n\u3000;\u3000北A한b가'm(c) |d,, e"
)
"""A text that each kind splits differently."""


def kind_of(backend: tokenizers.Tokenizer) -> str:
    """Return the name in `tokenizer.ggml.pre` of how a byte-level tokenizer splits words.

    Raises:
        UnsupportedModelError: GGUF has no name for it.
    """
    composes = backend.normalizer is not None
    found = backend.pre_tokenizer.pre_tokenize_str(_PROBE)
    whole_words = bool(getattr(backend.model, "ignore_merges", False))
    for kind, split in SPLITS.items():
        if (
            split.composes == composes
            and split.whole_words == whole_words
            and not split.escapes_spaces
            and _pre_tokenizer(split).pre_tokenize_str(_PROBE) == found
        ):
            return kind
    raise UnsupportedModelError(
        "The tokenizer splits words in a way that has no name in GGUF.",
        fix="Write compressed-tensors instead.",
    )


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the merges of a merges.txt, in order of application."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read.", fix="It belongs next to vocab.json; download it again."
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
