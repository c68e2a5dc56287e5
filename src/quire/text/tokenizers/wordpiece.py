"""BERT's tokenizer from its vocabulary alone: vocab.txt, one token per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from quire.core.errors import CheckpointError

_ROLES = {f"{role.lower()}_token": f"[{role}]" for role in ("UNK", "CLS", "SEP", "PAD", "MASK")}


def wordpiece_backend(
    path: Path, settings: dict[str, Any], roles: dict[str, str]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of vocab.txt; `roles` gains BERT's special tokens unless it has others.

    Args:
        settings: tokenizer_config.json; of it do_lower_case, strip_accents and
            tokenize_chinese_chars.

    Raises:
        CheckpointError: the file is no vocabulary, or lacks a special token.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}.", fix="Download or copy the file again."
        ) from error
    ids = {token: index for index, token in enumerate(lines)}
    for role, token in _ROLES.items():
        roles.setdefault(role, token)
    cls, sep, unknown = (roles[role] for role in ("cls_token", "sep_token", "unk_token"))
    if missing := [token for token in (cls, sep, unknown) if token not in ids]:
        raise CheckpointError(
            f"{path.name} lacks {', '.join(missing)}.", fix="Download or copy the file again."
        )
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing((sep, ids[sep]), (cls, ids[cls]))
    backend.add_special_tokens([token for token in roles.values() if token in ids])
    return backend
