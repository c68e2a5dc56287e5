"""Byte-level BPE whose files give each token a rank in place of merges.

| file | model | content |
|---|---|---|
| tekken.json | Mistral's | pattern, special tokens, tokens in base64 with their ranks |
| tiktoken.model | Kimi's | a line for each token: base64 and rank |

The pair whose token has the least rank is merged first. So the merges are all cuts of each token
into two others, in the order of the ranks.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.text.tokenizers.added_tokens import Added
from quire.text.tokenizers.byte_level import split_bpe
from quire.text.tokenizers.mistral_template import mistral_template
from quire.text.tokenizers.post_processor import surround
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE
from quire.text.tokenizers.word_splits import SPLITS, WordSplit

FILES = ("tekken.json", "tiktoken.model")
_OLD_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of a tekken.json that lists none."""
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_KIMI, _KIMI_RESERVED = "TikTokenTokenizer", 256
"""Kimi's `tokenizer_class`, and how many special tokens stand behind its vocabulary."""


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def ranked_backend(
    path: Path, settings: dict[str, Any], added: Added, templates: dict[str, str]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of one of `FILES`.

    Args:
        settings: tokenizer_config.json.
        added: gains the roles of Mistral's tokens.
        templates: gains Mistral's chat template, if it is empty.

    Raises:
        CheckpointError: the file is damaged.
        UnsupportedModelError: it is not known how the file's tokenizer splits words.
    """
    try:
        content = path.read_bytes()
        if path.name == "tekken.json":
            return _tekken(content, path, added, templates)
        if settings.get("tokenizer_class") == _KIMI:
            lines = [line.split() for line in content.splitlines() if line]
            ranks = {b64decode(token): int(rank) for token, rank in lines}
            named = {id_: token.content for id_, token in added.declared.items()}
            reserved = range(len(ranks), len(ranks) + _KIMI_RESERVED)
            special = {named.get(id_, f"<|reserved_token_{id_}|>"): id_ for id_ in reserved}
            return _backend(ranks, special, 0, SPLITS["kimi-k2"], path)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", fix="Download or copy the file again."
        ) from error
    raise UnsupportedModelError(
        f"{path.name} does not say how its tokenizer splits words; Quire knows this of Kimi alone "
        f"(tokenizer_class {_KIMI}).",
        fix="Add a tokenizer.json, or name a tokenizer with --tokenizer.",
    )


def _tekken(
    content: bytes, path: Path, added: Added, templates: dict[str, str]
) -> tokenizers.Tokenizer:
    file = msgspec.json.decode(content, type=_Tekken)
    first, size = file.config.default_num_special_tokens, file.config.default_vocab_size
    special = {f"<SPECIAL_{id_}>": id_ for id_ in range(first)}
    named = file.special_tokens or [_Special(*each) for each in enumerate(_OLD_SPECIAL)]
    names = {each.rank: each.token_str for each in named}
    special = {names.get(id_, filler): id_ for filler, id_ in special.items()}
    if len(special) != first or not names.keys() <= {*range(first)}:
        raise ValueError("its special tokens have no numbers of their own")
    ranks = {b64decode(token.token_bytes): token.rank for token in file.vocab[: size - first]}
    split = WordSplit((file.config.pattern,), whole_words=True)
    backend = _backend(ranks, special, first, split, path)
    for role, token in _ROLES.items():
        if token in special:
            added.roles.setdefault(role, token)
    surround(backend, added.roles.get("bos_token"), None)
    template = mistral_template(file.config.version, special)
    if template is not None and not templates:
        templates["default"] = template
    return backend


def _backend(
    ranks: dict[bytes, int], special: dict[str, int], first: int, split: WordSplit, path: Path
) -> tokenizers.Tokenizer:
    """Return the BPE of tokens whose ids are their ranks behind the `first` ids."""
    if sorted(ranks.values()) != [*range(len(ranks))] or not all(
        bytes([b]) in ranks for b in range(256)
    ):
        raise ValueError("its ranks have gaps, or a byte has no token")
    spelled = {token: "".join(map(CHAR_OF_BYTE.__getitem__, token)) for token in ranks}
    vocabulary = {text: first + ranks[token] for token, text in spelled.items()} | special
    if len(vocabulary) != len(ranks) + len(special):
        raise ValueError("a special token is spelled like another token")
    merges = [
        (spelled[token[:cut]], spelled[token[cut:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    backend = split_bpe(vocabulary, merges, split, path.name)
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    return backend
