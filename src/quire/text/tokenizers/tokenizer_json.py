"""tokenizer.json, opened faster than by the library, and with less memory.

The library's tables of 151,000 tokens fill 32 MiB, and its own reader takes 127 MiB on the way
there. Here native code reads the two large parts of a BPE's file into tables of its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
from tokenizers import AddedToken

from quire import _native
from quire.core.errors import CheckpointError
from quire.text.tokenizers.byte_pairs import BytePairs

SMALL_BYTES = 1 << 20
"""Files up to this size are the library's: there is nothing to save."""
UNKNOWN = "\U0010ffff"
"""The pipeline's only token."""


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    """The model in the file, if it is a BPE that the tables can hold."""

    type: Literal["BPE"]
    vocab: msgspec.Raw
    merges: msgspec.Raw
    dropout: None = None
    unk_token: str | None = None
    continuing_subword_prefix: None = None
    end_of_word_suffix: None = None
    fuse_unk: bool | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None

    def table(self) -> _native.BytePairs:
        if self.unk_token == "":
            raise ValueError("the unknown token has no name")
        return _native.BytePairs(
            self.vocab, self.merges, self.unk_token or "", bool(self.fuse_unk),
            bool(self.byte_fallback), bool(self.ignore_merges),
        )  # fmt: skip


class _AnyModel(msgspec.Struct):
    vocab: msgspec.Raw = msgspec.Raw()


class _Any(msgspec.Struct):
    """A file of any kind."""

    model: _AnyModel


class _File(msgspec.Struct, forbid_unknown_fields=True):
    model: _Model
    version: str = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[dict[str, Any]] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def read_tokenizer_json(path: Path) -> tuple[tokenizers.Tokenizer, BytePairs | None]:
    """Return the pipeline that the file `path` describes, and the vocabulary if it has none.

    Raises:
        CheckpointError: the file is damaged or no tokenizer.
    """
    try:
        if path.stat().st_size > SMALL_BYTES:
            with suppress(Exception):  # the library can read it, or says what is wrong
                return read_byte_pairs(path)
        found = tokenizers.Tokenizer.from_file(str(path))
        check_ids(_vocabulary(path.read_bytes()))
        return found, None
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", fix="Download or copy the file again."
        ) from error


def _vocabulary(content: bytes) -> dict[str, int]:
    """Return a file's token → id; empty if its tokens have the ids of a list."""
    vocabulary = msgspec.json.decode(content, type=_Any).model.vocab
    written = memoryview(vocabulary).tobytes()
    return msgspec.json.decode(written, type=dict[str, int]) if written.startswith(b"{") else {}


def check_ids(vocabulary: dict[str, int]) -> None:
    """Raise ValueError if two tokens have one id: the library would lose one of them later."""
    known: dict[int, str] = {}
    if len(set(vocabulary.values())) < len(vocabulary):
        for token, id_ in vocabulary.items():
            if (other := known.setdefault(id_, token)) != token:
                raise ValueError(f"{other!r} and {token!r} have the id {id_}")


def read_byte_pairs(path: Path) -> tuple[tokenizers.Tokenizer, BytePairs]:
    """Return the pipeline that tokenizer.json describes, and its vocabulary.

    Raises:
        Exception: of any kind, where the file is damaged, or no BPE that the tables can hold.
    """
    file = msgspec.json.decode(path.read_bytes(), type=_File)
    table = file.model.table()
    ids = [token.pop("id") for token in file.added_tokens]
    added = [AddedToken(**token) for token in file.added_tokens]
    stages = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    rest: dict[str, Any] = {name: getattr(file, name) for name in stages}
    rest |= {"version": file.version, "added_tokens": [], "truncation": None, "padding": None}
    rest["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [(UNKNOWN, 0.0)]}
    pipeline = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(rest))
    pipeline.add_tokens(added)
    contents: dict[str, int] = {}
    end = table.size
    for token, id_ in zip(added, ids, strict=True):
        known = table.id(token.content)
        if id_ != (end if known is None else known):
            raise ValueError("an added token has another id")
        contents[token.content] = id_
        end = max(end, id_ + 1)
    kinds = {kind: token.content for kind, token in pipeline.get_added_tokens_decoder().items()}
    if kinds != dict(enumerate(contents, start=1)):
        raise ValueError("an added token comes twice, or is empty")
    return pipeline, BytePairs(path, table, bool(file.model.byte_fallback), contents)
