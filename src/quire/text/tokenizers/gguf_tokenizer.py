"""The tokenizer in a GGUF file, from its `tokenizer.ggml.*` metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from quire.checkpoint.gguf import GGUFFile
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizers.byte_level import bpe_backend
from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.tokenizers.post_processor import surround
from quire.text.tokenizers.sentencepiece import (
    SPACE,
    Piece,
    PieceType,
    TextNormalizer,
    Vocabulary,
    sentencepiece_backend,
    split_off,
)
from quire.text.tokenizers.token_bytes import byte_of
from quire.text.tokenizers.word_splits import SPLITS

ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Role of a token → its key."""


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
    """Open the tokenizer in the GGUF file `path`.

    Raises:
        CheckpointError: the file has no tokenizer, or its metadata is damaged; names the key.
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
    types = meta.array("token_type", int, len(tokens))
    if model == "llama":
        tokens = _with_spaces(tokens, types)
    spelled = _spelled(tokens, types)
    # A token may be empty in the file; it has no text then, but keeps its id.
    tokens = [token or f"[EMPTY_{id_}]" for id_, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise meta.error("tokenizer.ggml.tokens holds the same token twice")
    types = types or [PieceType.NORMAL] * len(tokens)
    normalize = None
    if model == "llama":
        scores = meta.array("scores", float, len(tokens)) or [0.0] * len(tokens)
        pieces = [Piece(*piece) for piece in zip(tokens, scores, types, strict=True)]
        prefix = meta.get("add_space_prefix", bool, True)
        backend = sentencepiece_backend(Vocabulary(pieces, add_dummy_prefix=prefix))
        # The backend escapes spaces after it found user-defined tokens, which may hold some.
        backend.normalizer = normalizers.Replace(" ", SPACE)
        normalize = TextNormalizer(None, prefix=True, space=" ") if prefix else None
        starts_with_bos = True
    elif model in ("gpt2", "gemma4"):
        kind = model if model == "gemma4" else meta.get("pre", str, "default")
        backend = _bpe(meta, tokens, types, kind)
        starts_with_bos = SPLITS[kind].starts_with_bos
    else:
        raise UnsupportedModelError(
            f"{path.name}: the tokenizer is of kind {model!r}.",
            fix="Quire reads the kinds llama (sentencepiece), gpt2 (byte-level BPE) and gemma4; "
            "use the model's Hugging Face folder.",
        )
    roles = _roles(meta, tokens)
    surround(
        backend,
        roles.get("bos_token") if meta.get("add_bos_token", bool, starts_with_bos) else None,
        roles.get("eos_token") if meta.get("add_eos_token", bool, False) else None,
    )
    templates = _chat_templates(file)
    return HFTokenizer(TokenizerFiles(backend, roles, templates, normalize, spelled))


def _spelled(tokens: list[str], types: list[int]) -> dict[int, bytes]:
    """Return the bytes of the tokens that are not spelled in the vocabulary's usual way.

    Control and user-defined tokens are plain text, and unused ones have no text.
    """
    spelled = {id_: b"" for id_, token in enumerate(tokens) if not token}
    for id_, (token, type_) in enumerate(zip(tokens, types, strict=bool(types))):
        byte = byte_of(token)
        if type_ in (PieceType.CONTROL, PieceType.UNKNOWN, PieceType.USER_DEFINED):
            spelled[id_] = token.encode()
        elif type_ == PieceType.NORMAL:
            if byte is not None:  # it only looks like a byte
                spelled[id_] = token.encode()
        elif type_ != PieceType.BYTE:
            spelled[id_] = b""
        elif byte is not None:
            spelled[id_] = byte
    return spelled


def _with_spaces(tokens: list[str], types: list[int]) -> list[str]:
    """Spell user-defined runs of spaces as spaces. Old converters wrote them as "▁▁"."""
    tokens = list(tokens)
    known = set(tokens)
    for id_, type_ in enumerate(types):
        run = " " * len(tokens[id_])
        if type_ == PieceType.USER_DEFINED and not tokens[id_].strip(SPACE) and run not in known:
            tokens[id_] = run
    return tokens


def _bpe(meta: _Metadata, tokens: list[str], types: list[int], kind: str) -> tokenizers.Tokenizer:
    merges = []
    for merge in meta.array("merges", str):
        cut = merge.find(" ", 1)  # the left part may begin with a space
        merges.append((merge[:cut], merge[cut + 1 :]) if cut > 0 else ("", merge))
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    backend = bpe_backend(vocabulary, merges, kind, meta.file.path.name)
    split_off(backend, zip(tokens, types, strict=True))
    return backend


def _roles(meta: _Metadata, tokens: list[str]) -> dict[str, str]:
    roles = {}
    for role, key in ROLES.items():
        id_ = meta.get(key, int)
        if id_ is not None and id_ < len(tokens):  # 2³² − 1 means "no token"
            roles[role] = tokens[id_]
    return roles


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    """Return `tokenizer.chat_template` and its named variants."""
    prefix = "tokenizer.chat_template"
    templates = {}
    for key, value in file.metadata.items():
        if isinstance(value, str) and key == prefix:
            templates["default"] = value
        elif isinstance(value, str) and key.startswith(f"{prefix}."):
            templates[key.removeprefix(f"{prefix}.")] = value
    return templates
