"""The tokenizer inside a GGUF file, by its `tokenizer.ggml.*` metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from quire.checkpoint.gguf import GGUFFile
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.byte_level import STARTS_WITH_BOS, byte_level_backend
from quire.text.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.post_processor import surround
from quire.text.sentencepiece import (
    Piece,
    PieceType,
    Vocabulary,
    sentencepiece_backend,
    text_normalizer,
)

_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class _Metadata:
    """The `tokenizer.ggml.*` keys of a file, checked for type."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and type(value) is not kind:
            raise self.error(f"tokenizer.ggml.{key} is not of type {kind.__name__}")
        return value

    def array(self, key: str, kind: type, length: int | None = None) -> list[Any]:
        values: list[Any] = self.get(key, list, [])
        if not all(type(value) is kind for value in values):
            raise self.error(f"tokenizer.ggml.{key} holds something else than {kind.__name__}")
        if length is not None and values and len(values) != length:
            raise self.error(f"tokenizer.ggml.{key} has {len(values)} items for {length} tokens")
        return values

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file.path.name}: {what}.", fix="Convert or download the model again."
        )


def load_gguf(path: Path) -> HFTokenizer:
    """Opens the tokenizer in the GGUF file `path`.

    Raises:
        CheckpointError: there is none, or its metadata is damaged; names the key.
        UnsupportedModelError: it is neither sentencepiece nor byte-level BPE.
    """
    file = GGUFFile(path)
    meta = _Metadata(file)
    model = meta.get("model", str)
    tokens = meta.array("tokens", str)
    if model is None or not tokens:
        raise CheckpointError(
            f"{path.name} holds no tokenizer.", fix="Name a tokenizer with --tokenizer."
        )
    # A token may be empty in the file; it then stands for nothing, but keeps its place.
    tokens = [token or f"[EMPTY_{id_}]" for id_, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise meta.error("tokenizer.ggml.tokens holds the same token twice")
    types = meta.array("token_type", int, len(tokens)) or [PieceType.NORMAL] * len(tokens)
    if model == "llama":
        scores = meta.array("scores", float, len(tokens)) or [0.0] * len(tokens)
        pieces = [Piece(*piece) for piece in zip(tokens, scores, types, strict=True)]
        vocabulary = Vocabulary(pieces, add_dummy_prefix=meta.get("add_space_prefix", bool, True))
        backend = sentencepiece_backend(vocabulary)
        normalize = text_normalizer(vocabulary)
        starts_with_bos = True
    elif model == "gpt2":
        kind = meta.get("pre", str, "default")
        backend = _byte_level(meta, tokens, types, kind)
        normalize = None
        starts_with_bos = kind in STARTS_WITH_BOS
    else:
        raise UnsupportedModelError(
            f"{path.name}: the tokenizer is of kind {model!r}.",
            fix="Quire reads the kinds llama (sentencepiece) and gpt2 (byte-level BPE).",
        )
    roles = _roles(meta, tokens)
    surround(
        backend,
        roles.get("bos_token") if meta.get("add_bos_token", bool, starts_with_bos) else None,
        roles.get("eos_token") if meta.get("add_eos_token", bool, False) else None,
    )
    return HFTokenizer(TokenizerFiles(backend, roles, _chat_templates(file), normalize))


def _byte_level(
    meta: _Metadata, tokens: list[str], types: list[int], kind: str
) -> tokenizers.Tokenizer:
    merges = []
    for merge in meta.array("merges", str):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    backend = byte_level_backend(vocabulary, merges, kind, meta.file.path.name)
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (PieceType.CONTROL, PieceType.UNKNOWN)
        ]
    )
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ == PieceType.USER_DEFINED
        ]
    )
    return backend


def _roles(meta: _Metadata, tokens: list[str]) -> dict[str, str]:
    roles = {}
    for role, key in _ROLES.items():
        id_ = meta.get(key, int)
        if id_ is not None and id_ < len(tokens):  # 2³² − 1 says that there is none
            roles[role] = tokens[id_]
    return roles


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    """`tokenizer.chat_template` and its named variants."""
    prefix = "tokenizer.chat_template"
    templates = {}
    for key, value in file.metadata.items():
        if isinstance(value, str) and key == prefix:
            templates["default"] = value
        elif isinstance(value, str) and key.startswith(f"{prefix}."):
            templates[key.removeprefix(f"{prefix}.")] = value
    return templates
