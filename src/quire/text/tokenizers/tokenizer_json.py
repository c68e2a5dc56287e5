"""tokenizer.json, opened with less memory than the library takes.

The library's tables of 151,000 tokens fill 32 MiB. Its own reader takes 127 MiB on the way there,
and leaves 11 MiB in holes that are too small to be returned. Here msgspec reads the two large
tables of the file, and the library gets them as Python objects, which go as soon as it has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, models

from quire.core.errors import CheckpointError
from quire.system.garbage import no_collection

SMALL_BYTES = 1 << 20
"""Files up to this size are the library's: there is nothing to save."""
_OPTIONS = {
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
}
_PIPELINE = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_CHUNK = 8192


def read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """Return the pipeline that the file `path` describes, without truncation and padding.

    Raises:
        CheckpointError: the file is damaged or no tokenizer.
    """
    try:
        if path.stat().st_size > SMALL_BYTES:
            with suppress(Exception):  # the library can read it, or says what is wrong
                return read_large(path)
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", fix="Download or copy the file again."
        ) from error


@no_collection()
def read_large(path: Path) -> tokenizers.Tokenizer:
    """Return the same for a BPE whose file is as the library writes it.

    Raises:
        Exception: of any kind, where the file is different.
    """
    parts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    model = msgspec.json.decode(parts.pop("model"), type=dict[str, msgspec.Raw])
    added = msgspec.json.decode(parts.pop("added_tokens"), type=list[dict[str, Any]])
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    rest = {**parts, "added_tokens": [], "model": empty}
    pipeline = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(rest))
    del parts, rest  # each part keeps the whole file in memory
    backend = tokenizers.Tokenizer(_bpe(model))
    for stage in _PIPELINE:
        if (found := getattr(pipeline, stage)) is not None:
            setattr(backend, stage, found)
    contents = {token.pop("id"): token["content"] for token in added}
    backend.add_tokens([AddedToken(**token) for token in added])
    if contents != {i: token.content for i, token in backend.get_added_tokens_decoder().items()}:
        raise ValueError("an added token has another id")
    return backend


def _bpe(parts: dict[str, msgspec.Raw]) -> models.BPE:
    """Return the model of these members of the file; empties `parts`."""
    chunks = _chunks(parts.pop("merges"))
    vocabulary = msgspec.json.decode(parts.pop("vocab"), type=dict[str, int])
    options = {name: msgspec.json.decode(parts.pop(name)) for name in list(parts)}
    if options.pop("type") != "BPE" or not options.keys() <= _OPTIONS:
        raise ValueError("not a BPE, or a newer one")
    given = {name: value for name, value in options.items() if value is not None}
    return models.BPE(vocabulary, _Merges(vocabulary, chunks), **given)


def _chunks(raw: msgspec.Raw) -> list[str]:
    """Return the merges' halves, separated by NUL, some thousands in each text."""
    halves: Iterable[str]
    try:
        halves = chain.from_iterable(msgspec.json.decode(raw, type=list[tuple[str, str]]))
    except msgspec.ValidationError:  # the older spelling: "left right"
        lines = msgspec.json.decode(raw, type=list[str])
        if any(line.count(" ") != 1 or line.startswith("#version") for line in lines):
            raise
        halves = chain.from_iterable(line.split(" ") for line in lines)
    halves = iter(halves)
    chunks = []
    while some := list(islice(halves, _CHUNK)):
        chunks.append("\0".join(some))
        if chunks[-1].count("\0") != len(some) - 1:
            raise ValueError("a token holds a NUL")
    return chunks


class _Merges(Sequence[tuple[str, str]]):
    """The merges of a vocabulary, for the library, which reads them once.

    It has copied the vocabulary by then, and only begins to build its tables when it has copied
    the merges, too. So both are emptied at their end.
    """

    def __init__(self, vocabulary: dict[str, int], chunks: list[str]) -> None:
        self._vocabulary = vocabulary
        self._chunks = chunks

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for chunk in self._chunks:
            halves = iter(chunk.split("\0"))
            yield from zip(halves, halves, strict=True)
        self._chunks.clear()
        self._vocabulary.clear()

    def __len__(self) -> int:
        return sum(chunk.count("\0") // 2 + 1 for chunk in self._chunks)

    def __getitem__(self, index: object) -> Any:
        raise NotImplementedError("they are read in order")
