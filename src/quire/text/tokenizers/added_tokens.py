"""Tokens that a folder's other files add to its vocabulary, in Transformers' order."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from quire.checkpoint.json_file import read_json
from quire.core.errors import CheckpointError
from quire.system.records import dataclass

logger = logging.getLogger(__name__)

_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MOST_NAMED = 5
_EXTRA = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class Added:
    """What tokenizer_config.json and the files beside it say of added tokens.

    Attributes:
        roles: role → text, e.g. {"bos_token": "<s>"}; a vocabulary may name more.
        declared: id → token.
        extra: special tokens without a role.
    """

    roles: dict[str, str]
    declared: dict[int, AddedToken]
    extra: list[str]

    def missing(self, backend: tokenizers.Tokenizer) -> list[AddedToken]:
        """Return the tokens that `backend` does not have as added tokens."""
        wanted = {token.content: token for token in self.declared.values()}
        for text in (*self.roles.values(), *self.extra):
            wanted.setdefault(text, AddedToken(text, special=True, normalized=False))
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        return [token for text, token in wanted.items() if text not in known]

    def add(self, backend: tokenizers.Tokenizer) -> None:
        """Add the missing tokens behind the vocabulary; warn if one gets another id than said."""
        missing = self.missing(backend)
        backend.add_tokens(missing)
        added = {token.content for token in missing}
        moved = [
            (token.content, id_, found)
            for id_, token in self.declared.items()
            if token.content in added and (found := backend.token_to_id(token.content)) != id_
        ]
        for each in moved[:_MOST_NAMED]:
            logger.warning(
                "The tokenizer's files give %r the id %d; behind its vocabulary it gets %s.", *each
            )
        if more := moved[_MOST_NAMED:]:
            logger.warning("%d more tokens get other ids, too.", len(more))


def read_added(folder: Path, settings: dict[str, Any]) -> Added:
    """Return the added tokens of a folder whose tokenizer_config.json holds `settings`.

    Without its `added_tokens_decoder`, special_tokens_map.json has priority, and added_tokens.json
    is read, as older versions of Transformers wrote them.

    Raises:
        CheckpointError: a file is damaged; names it.
    """
    marked = optional_json(folder / "special_tokens_map.json")
    extra = [text for table in (settings, marked) for text in _extra(table)]
    if "added_tokens_decoder" in settings:
        roles = _roles(marked) | _roles(settings)
        declared = _declared(settings["added_tokens_decoder"])
    else:
        roles = _roles(settings) | _roles(marked)
        declared = _older(folder, {*roles.values(), *extra})
    return Added(roles, declared, extra)


def optional_json(path: Path) -> dict[str, Any]:
    """Return the table in a JSON file; {} if there is none."""
    return read_json(path) if path.is_file() else {}


def _declared(table: Any) -> dict[int, AddedToken]:
    """Return `added_tokens_decoder`, in order of the ids."""
    if not isinstance(table, dict) or not all(key.isdecimal() for key in table):
        return {}
    flags = ("single_word", "lstrip", "rstrip", "special")
    tokens = {}
    for id_, token in sorted(table.items(), key=lambda item: int(item[0])):
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise CheckpointError(
                f"tokenizer_config.json: added token {id_} has no content.",
                fix="Correct the entry, or remove it.",
            )
        options = {key: bool(token.get(key)) for key in flags}
        normalized = bool(token.get("normalized", False))
        tokens[int(id_)] = AddedToken(_valid(token["content"]), normalized=normalized, **options)
    return tokens


def _older(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json, in order of the ids."""
    table = optional_json(folder / "added_tokens.json")
    for text, id_ in table.items():
        if type(id_) is not int or id_ < 0:
            raise CheckpointError(
                f"added_tokens.json gives {text!r} the id {id_!r}.",
                fix="Correct the entry, or remove it.",
            )
    return {
        id_: AddedToken(_valid(text), special=text in special, normalized=text not in special)
        for text, id_ in sorted(table.items(), key=lambda item: item[1])
    }


def _text(token: Any) -> str | None:
    """Return a token's text; files write a token as a string or as an object with "content"."""
    token = token.get("content") if isinstance(token, dict) else token
    return _valid(token) if isinstance(token, str) and token else None


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"The tokenizer's files name the token {text!r}, which is not valid Unicode.",
            fix="Correct the entry, or remove it.",
        ) from None
    return text


def _roles(table: dict[str, Any]) -> dict[str, str]:
    """Return role → text: the usual roles, then the model's own, such as `image_token`."""
    own = table.get("extra_special_tokens")
    named = own if isinstance(own, dict) else {}
    roles = [*_ROLES, *(key for key in table if key.endswith("_token")), *named]
    found = {role: _text(table.get(role) or named.get(role)) for role in roles}
    return {role: text for role, text in found.items() if text is not None}


def _extra(table: dict[str, Any]) -> list[str]:
    tokens: list[Any] = []
    for name in _EXTRA:
        found = table.get(name)
        if isinstance(found, dict):  # by names of the model's own
            found = list(found.values())
        tokens += found if isinstance(found, list) else []
    return [text for token in tokens if (text := _text(token)) is not None]
