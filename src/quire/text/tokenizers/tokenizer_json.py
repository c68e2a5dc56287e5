"""tokenizer.json, opened faster than by the library, and with less memory.

The library's tables of 151,000 tokens fill 32 MiB. Its own reader takes 127 MiB on the way there,
and leaves 11 MiB in holes that are too small to be returned. Here msgspec reads the two large
tables of the file. The library gets the vocabulary as a dict, and the merges slice by slice, while
the slice is in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
from tokenizers import AddedToken, models

from quire.core.errors import CheckpointError
from quire.system.garbage import no_collection

SMALL_BYTES = 1 << 20
"""Files up to this size are the library's: there is nothing to save."""
SLICE_BYTES = 1 << 16
"""Least bytes of merges that exist as Python objects at a time."""
TRIES = 8
"""Ends of a slice that may turn out to lie inside a token."""
_PIPELINE = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


class _BPE(msgspec.Struct, forbid_unknown_fields=True):
    """The model in the file. `options` returns the members that are not tables."""

    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: msgspec.Raw
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__struct_fields__[3:]}
        return {name: value for name, value in values.items() if value is not None}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    model: _BPE
    version: str = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[dict[str, Any]] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


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
    file = msgspec.json.decode(path.read_bytes(), type=_File)
    merges = _Merges(file.model.vocab, bytes(file.model.merges))
    file.model.merges = msgspec.Raw()  # this part keeps the whole file in memory
    backend = tokenizers.Tokenizer(models.BPE(file.model.vocab, merges, **file.model.options))
    rest = {name: getattr(file, name) for name in file.__struct_fields__}
    rest |= {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
    pipeline = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(rest))
    for stage in _PIPELINE:
        if (found := getattr(pipeline, stage)) is not None:
            setattr(backend, stage, found)
    contents = {token.pop("id"): token["content"] for token in file.added_tokens}
    backend.add_tokens([AddedToken(**token) for token in file.added_tokens])
    if contents != {i: token.content for i, token in backend.get_added_tokens_decoder().items()}:
        raise ValueError("an added token has another id")
    return backend


class _Merges(Sequence[tuple[str, str]]):
    """The merges of a vocabulary, for the library, which reads them once.

    It has copied the vocabulary by then, and only begins to build its tables when it has copied
    the merges, too. So the vocabulary is emptied at their end.

    Args:
        text: a JSON array of pairs, or in older files of strings "left right".
    """

    def __init__(self, vocabulary: dict[str, int], text: bytes) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._in_pairs = text[1:64].lstrip().startswith(b"[")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        begin = 1  # behind the bracket
        while begin < len(self._text):
            merges, begin = self._slice(begin)
            yield from merges
        self._vocabulary.clear()

    def _slice(self, begin: int) -> tuple[list[tuple[str, str]], int]:
        """Return the merges from byte `begin` on, and where the next ones begin."""
        end, mark = begin + SLICE_BYTES, b"]," if self._in_pairs else b'",'
        for _ in range(TRIES):
            end = self._text.find(mark, end) + 1
            if end == 0:
                break
            with suppress(msgspec.DecodeError):  # the mark is part of a token: a string is open
                return self._decode(self._text[begin:end] + b"]"), end + 1
        return self._decode(self._text[begin:]), len(self._text)

    def _decode(self, members: bytes) -> list[tuple[str, str]]:
        if self._in_pairs:
            return msgspec.json.decode(b"[" + members, type=list[tuple[str, str]])
        lines = msgspec.json.decode(b"[" + members, type=list[str])
        if any(line.count(" ") != 1 or line.startswith("#version") for line in lines):
            raise ValueError("a merge is not one of two tokens")
        return [(left, right) for left, _, right in (line.partition(" ") for line in lines)]

    def __len__(self) -> int:
        """Return about how many there are: the library reserves room for them."""
        return len(self._vocabulary)

    def __getitem__(self, index: object) -> Any:
        raise NotImplementedError("they are read in order")
