"""Sentencepiece vocabularies (`tokenizer.model`), without the sentencepiece package.

A .model file is a protocol-buffer message: https://github.com/google/sentencepiece/blob/master/
src/sentencepiece_model.proto. Only the fields that affect tokenization are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.system.records import dataclass

SPACE = "▁"


class PieceType(IntEnum):
    """The type of a piece, numbered as in GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A sentencepiece vocabulary, from any file.

    Attributes:
        algorithm: "bpe" or "unigram".
        charsmap: compiled table of character replacements; empty for none.
        add_dummy_prefix: a space goes in front of every text.
        remove_extra_whitespaces: spaces are trimmed and runs of them become one.
        bos_id, eos_id: pieces that begin and end a text; out of range if there is no such piece.
    """

    pieces: list[Piece]
    algorithm: str = "bpe"
    byte_fallback: bool = True
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = False
    bos_id: int = 1
    eos_id: int = 2


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary of a .model file.

    Raises:
        CheckpointError: the file is damaged; names it.
        UnsupportedModelError: Quire cannot read this kind of vocabulary.
    """
    try:
        return _parse(path.read_bytes())
    except UnsupportedModelError:
        raise
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", fix="Download or copy the file again."
        ) from error


def _parse(raw: bytes) -> Vocabulary:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(raw):
        if number == 1:
            fields = dict(_fields(_message(value)))
            text = _message(fields.get(1, b"")).decode()
            score = struct.unpack("<f", _message(fields.get(2, bytes(4))))[0]
            pieces.append(Piece(text, score, int(fields.get(3, PieceType.NORMAL))))
        elif number == 2:
            trainer = dict(_fields(_message(value)))
        elif number == 3:
            normalizer = dict(_fields(_message(value)))
    if not pieces:
        raise ValueError("it holds no vocabulary")
    algorithm = {1: "unigram", 2: "bpe"}.get(trainer.get(3, 1))
    if algorithm is None or trainer.get(24, 0) or not normalizer.get(5, 1):
        raise UnsupportedModelError(
            "The sentencepiece model is neither BPE nor unigram, or treats spaces unusually.",
            fix="Use a model with a tokenizer.json.",
        )
    return Vocabulary(
        pieces,
        algorithm,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=_message(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        bos_id=int(trainer.get(41, 1)),
        eos_id=int(trainer.get(42, 2)),
    )


def _message(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong type")
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol-buffer message: (number, integer or bytes)."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(raw, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} is unknown")
        if at + length > len(raw):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has more than 64 bits")


def sentencepiece_backend(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Return the `tokenizers` pipeline that splits normalized text (`text_normalizer`) as
    sentencepiece does.

    Raises:
        CheckpointError: two pieces are the same.
    """
    ids = {piece.text: id_ for id_, piece in enumerate(vocabulary.pieces)}
    if len(ids) != len(vocabulary.pieces):
        raise CheckpointError(
            "The vocabulary holds the same piece twice.", fix="Convert the tokenizer again."
        )
    unknown = next((p.text for p in vocabulary.pieces if p.type == PieceType.UNKNOWN), None)
    try:
        backend = tokenizers.Tokenizer(_model(vocabulary, ids, unknown))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"The sentencepiece vocabulary does not make a tokenizer: {error}.",
            fix="Download or convert the tokenizer again.",
        ) from error
    stages: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_dummy_prefix:
        stages.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(stages)
    split_off(backend, ((piece.text, piece.type) for piece in vocabulary.pieces))
    return backend


def split_off(backend: tokenizers.Tokenizer, pieces: Iterable[tuple[str, int]]) -> None:
    """Let `backend` split text at pieces that are no text of the model, and at a user's.

    All at once, because the library builds its search anew each time: 0.02 s for 2,000 pieces, one
    by one 7 s.
    """
    added = [
        AddedToken(text, normalized=False, special=type_ != PieceType.USER_DEFINED)
        for text, type_ in pieces
        if type_ in (PieceType.CONTROL, PieceType.UNKNOWN, PieceType.USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])


def _model(vocabulary: Vocabulary, ids: dict[str, int], unknown: str | None) -> Any:
    if vocabulary.algorithm == "bpe":
        return models.BPE(
            ids,
            _merges(vocabulary.pieces, ids),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=vocabulary.byte_fallback,
        )
    scored = [(piece.text, piece.score) for piece in vocabulary.pieces]
    return models.Unigram(scored, ids.get(unknown or ""), vocabulary.byte_fallback)


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return every pair of pieces whose concatenation is a piece, highest score first.

    Sentencepiece repeatedly joins the two neighbours that form the piece with the highest score.
    BPE does the same with merges ordered by the score of their result.
    """
    joinable = {PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED}
    merges = []
    for id_, piece in enumerate(pieces):
        if piece.type not in joinable:
            continue
        text = piece.text
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                merges.append((-piece.score, id_, left, right))
    merges.sort()
    return [(pieces[left].text, pieces[right].text) for _, _, left, right in merges]


def _charsmap(table: bytes) -> Any:
    try:
        return normalizers.Precompiled(table)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"The sentencepiece model's table of characters is damaged: {error}.",
            fix="Download or copy the file again.",
        ) from error


@dataclass(frozen=True, slots=True)
class TextNormalizer:
    """Sentencepiece's normalization of a text.

    Attributes:
        stages: replacements and removals of characters, if any.
        prefix: put a space in front of every text.
        once: put none in front of text behind a special token (Transformers' `legacy: false`).
    """

    stages: normalizers.Sequence | None
    prefix: bool
    space: str = SPACE
    once: bool = False

    @property
    def shortens(self) -> bool:
        """Return whether it may shorten a text."""
        return self.stages is not None

    def __call__(self, text: str, *, first: bool = True) -> str:
        if self.stages is not None:
            text = self.stages.normalize_str(text)
        text = text.replace(" ", self.space)
        return SPACE + text if text and self.prefix and (first or not self.once) else text


def text_normalizer(vocabulary: Vocabulary, *, once: bool = False) -> TextNormalizer:
    """Return the normalizer of a sentencepiece vocabulary; `once` as in `TextNormalizer`."""
    stages: list[Any] = []
    if vocabulary.charsmap:
        stages.append(_charsmap(vocabulary.charsmap))
    if vocabulary.remove_extra_whitespaces:
        stages.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        stages.append(normalizers.Replace(Regex(" {2,}"), " "))
    pipeline = normalizers.Sequence(stages) if stages else None
    return TextNormalizer(pipeline, vocabulary.add_dummy_prefix, once=once)
