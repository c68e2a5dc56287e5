"""Write a tokenizer as the `tokenizer.*` keys of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_writer import Value
from quire.core.errors import UnsupportedModelError
from quire.text.tokenizers.byte_level import kind_of
from quire.text.tokenizers.gguf_tokenizer import ROLES
from quire.text.tokenizers.hf_tokenizer import HFTokenizer
from quire.text.tokenizers.sentencepiece import SPACE, PieceType, read_vocabulary
from quire.text.tokenizers.token_bytes import byte_of
from quire.text.tokenizers.tokenizer_files import load_files

_PROBE = "a"


def tokenizer_metadata(path: Path, vocab_size: int) -> dict[str, Value]:
    """Return the keys for the tokenizer in `path` (see `load_tokenizer`) with its chat templates.

    Args:
        vocab_size: rows of the embedding; rows without a token get an unused one.

    Raises:
        UnsupportedModelError: GGUF has no name for this kind of tokenizer.
    """
    if path.suffix.lower() == ".gguf":
        metadata = GGUFFile(path).metadata
        return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    tokenizer = load_files(path)
    pipeline: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    if pipeline["model"]["type"] != "BPE":
        raise UnsupportedModelError(
            f"The tokenizer is of kind {pipeline['model']['type']!r}; GGUF takes BPE alone.",
            fix="Write compressed-tensors instead.",
        )
    tokens, types = _tokens(pipeline, vocab_size)
    keys: dict[str, Value]
    if pipeline["model"]["byte_fallback"] or _is_sentencepiece(path):
        keys = _sentencepiece(tokenizer, pipeline, tokens, types, path)
    else:
        merges = [" ".join(_pair(merge)) for merge in pipeline["model"]["merges"]]
        keys = {"model": "gpt2", "pre": kind_of(tokenizer.backend), "merges": merges}
    ids = tokenizer.encode(_PROBE)
    keys |= {
        "tokens": tokens,
        "token_type": [int(type_) for type_ in types],
        "add_bos_token": ids[:1] == [tokenizer.bos_token_id],
        "add_eos_token": ids[-1:] == [tokenizer.eos_token_id],
    }
    for role, key in ROLES.items():
        token = tokenizer.special_tokens.get(role)
        id_ = None if token is None else tokenizer.token_to_id(token)
        if id_ is not None:
            keys[key] = id_
    templates = {
        "tokenizer.chat_template" + ("" if name == "default" else f".{name}"): source
        for name, source in tokenizer.chat_templates.items()
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | templates


def _tokens(pipeline: dict[str, Any], vocab_size: int) -> tuple[list[str], list[PieceType]]:
    """Return the token and the type of every id below `vocab_size`."""
    texts: dict[int, str] = {id_: text for text, id_ in pipeline["model"]["vocab"].items()}
    added = {token["id"]: token for token in pipeline["added_tokens"]}
    unknown = pipeline["model"].get("unk_token")
    tokens, types = [], []
    for id_ in range(vocab_size):
        if id_ in added:
            token = added[id_]
            text = token["content"]
            type_ = PieceType.CONTROL if token["special"] else PieceType.USER_DEFINED
        elif id_ in texts:
            text = texts[id_]
            type_ = PieceType.NORMAL
            if pipeline["model"]["byte_fallback"] and byte_of(text) is not None:
                type_ = PieceType.BYTE
        else:
            text, type_ = f"[PAD{id_}]", PieceType.UNUSED
        tokens.append(text)
        types.append(PieceType.UNKNOWN if text == unknown else type_)
    return tokens, types


def _sentencepiece(
    tokenizer: HFTokenizer,
    pipeline: dict[str, Any],
    tokens: list[str],
    types: list[PieceType],
    path: Path,
) -> dict[str, Value]:
    """Kind "llama": scores instead of merges, highest first."""
    model = path if path.suffix == ".model" else path / "tokenizer.model"
    if _is_sentencepiece(path):
        pieces = read_vocabulary(model).pieces
        scores = [piece.score for piece in pieces][: len(tokens)]
        for id_, piece in enumerate(pieces[: len(tokens)]):
            types[id_] = PieceType(piece.type)
        scores += [0.0] * (len(tokens) - len(scores))
    else:
        # The first merge is applied first, like the piece with the highest score.
        rank: dict[str, int] = {}
        for place, merge in enumerate(pipeline["model"]["merges"]):
            rank.setdefault("".join(_pair(merge)), place)
        last = len(rank)
        scores = [-float(rank.get(token, last)) for token in tokens]
    for id_, type_ in enumerate(types):
        if type_ == PieceType.USER_DEFINED:  # plain text in GGUF
            tokens[id_] = tokens[id_].replace(SPACE, " ")
    return {
        "model": "llama",
        "pre": "default",
        "scores": scores,
        "add_space_prefix": tokenizer.strips_leading_space,
    }


def _is_sentencepiece(path: Path) -> bool:
    return path.suffix == ".model" or (path / "tokenizer.model").is_file()


def _pair(merge: str | list[str]) -> list[str]:
    """Return a merge of tokenizer.json, in its older or its newer form."""
    return merge.split(" ") if isinstance(merge, str) else merge
