"""A tokenizer on the `tokenizers` library, for any vocabulary file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Literal

import tokenizers
from tokenizers import AddedToken

from quire.core.errors import InvalidRequestError
from quire.system.records import dataclass
from quire.text.guard import any_of
from quire.text.least_tokens import least_tokens
from quire.text.tokenizers.byte_pairs import BytePairs
from quire.text.tokenizers.post_processor import Frame, frame_of
from quire.text.tokenizers.sentencepiece import TextNormalizer
from quire.text.tokenizers.token_bytes import TokenDecoder

UNLOCKED_CHARACTERS = 4096
"""Longer texts are encoded as a batch, during which other Python threads can run."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A model's tokenizer settings from all its files.

    Attributes:
        backend: the vocabulary with its pipeline and added tokens.
        table: the vocabulary, if `backend` is only its pipeline.
        special_tokens: role → text, e.g. {"bos_token": "<s>"}; for chat templates.
        chat_templates: name → Jinja source; the main one is "default".
        normalize: applied to every stretch of text between special tokens, before `backend`;
            for pipelines that `tokenizers` cannot express.
        spelled: token id → its bytes, for tokens that the backend's decoder would misread.
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)
    normalize: TextNormalizer | None = None
    spelled: dict[int, bytes] = field(default_factory=dict)
    table: BytePairs | None = None


class HFTokenizer:
    """See `text.tokenizers.tokenizer.Tokenizer` for the meaning of each member."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend, self._table = files.backend, files.table
        self._backend.no_truncation()
        self._backend.no_padding()
        self._normalize = files.normalize
        self._decoder = TokenDecoder.of(self._backend)
        self._bytes: dict[int, bytes] = dict(files.spelled)
        _match_special_tokens_as_written(self._backend)
        id_of = self._table.id_of if self._table else int
        found = self._backend.get_added_tokens_decoder()
        self._added = added = {id_of(kind): token for kind, token in found.items()}
        self._special = {id_: token for id_, token in added.items() if token.special}
        self._normalized = {
            id_of(kind): self._backend.id_to_token(kind)
            for kind, token in found.items()
            if token.normalized
        }
        self.special_tokens = files.special_tokens
        self.chat_templates = files.chat_templates
        vocabulary = self._table.size if self._table else self._backend.get_vocab_size()
        self.vocab_size = max([vocabulary, *(id_ + 1 for id_ in added)])
        self.bos_token_id = self._role_id("bos_token")
        self.eos_token_id = self._role_id("eos_token")

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """Return the vocabulary with its pipeline and added tokens, in the library's tables."""
        if self._table is None:
            return self._backend
        return tokenizers.Tokenizer.from_file(str(self._table.path))

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @cached_property
    def all_special_ids(self) -> frozenset[int]:
        roles = (self.token_to_id(token) for token in self.special_tokens.values())
        return frozenset([*self._special, *(id_ for id_ in roles if id_ is not None)])

    @cached_property
    def special_token_strings(self) -> tuple[str, ...]:
        return tuple(token.content for token in self._special.values())

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """Return a pattern for special tokens: leftmost, then longest, as in the backend."""
        return re.compile(any_of(self.special_token_strings))

    @property
    def strips_leading_space(self) -> bool:
        return self._decoder.strips_leading_space

    @cached_property
    def _least_tokens(self) -> Callable[[str], int] | None:
        normalize = self._normalize
        shortens = normalize is not None and normalize.shortens
        return None if shortens else least_tokens(self._backend, self._table)

    def least_tokens(self, text: str) -> int:
        return 0 if self._least_tokens is None else self._least_tokens(text)

    @cached_property
    def _frames(self) -> tuple[Frame, Frame]:
        return frame_of(self._backend, pair=False), frame_of(self._backend, pair=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = self._encode(text)
        return self._frames[0].around(ids)[0] if add_special_tokens else ids

    def _encode(self, text: str) -> list[int]:
        _check_unicode(text)
        if self._normalize is not None:
            spans = [match.span() for match in self._special_pattern.finditer(text)]
            text = self._prepare(text, spans, self._normalize, None)
        words = _encode(self._backend, text)
        return words.ids if self._table is None else self._table.encode(words)

    def encode_bounded(
        self,
        text: str,
        second: str | None = None,
        max_tokens: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> tuple[list[int], int]:
        parts = [self._encode(part) for part in (text, second) if part is not None]
        frame = self._frames[second is not None]
        if max_tokens is not None:
            parts = _truncated(parts, max_tokens, frame.size, side)
        return frame.around(*parts)

    def encode_with_controls(self, text: str, controls: list[tuple[int, int]]) -> list[int]:
        _check_unicode(text)
        plain, stand_ins, real = self._plain_backend
        text = self._prepare(text, controls, self._normalize, stand_ins)
        words = _encode(plain, text)
        if self._table is not None:
            return self._table.encode(words, [*real.values()])
        return [real.get(id_, id_) for id_ in words.ids]

    @staticmethod
    def _prepare(
        text: str,
        controls: list[tuple[int, int]],
        normalize: TextNormalizer | None,
        stand_ins: dict[str, str] | None,
    ) -> str:
        """Return `text` normalized between `controls`, which are replaced by stand-ins."""
        parts: list[str] = []
        position = 0
        for start, stop in [*controls, (len(text), len(text))]:
            between, token = text[position:start], text[start:stop]
            parts.append(normalize(between, first=not position) if normalize else between)
            parts.append(stand_ins[token] if stand_ins and token else token)
            position = stop
        return "".join(parts)

    @cached_property
    def _plain_backend(self) -> tuple[tokenizers.Tokenizer, dict[str, str], dict[int, int]]:
        """Return a copy that reads special tokens as plain text, with unguessable stand-ins for
        them.

        With a stand-in, unlike with a cut, the neighbouring text is tokenized exactly as next to
        the real token. Returns the copy, special token → stand-in, and the stand-in's id → the
        real id.
        """
        plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        secret = os.urandom(16).hex()
        names = {id_: f"\U0010fffc{secret}:{id_}\U0010fffd" for id_ in self._special}
        plain.add_tokens(  # all at once: see `split_off`
            [
                AddedToken(names[id_], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                for id_, token in self._special.items()
            ]
        )
        stand_ins = {token.content: names[id_] for id_, token in self._special.items()}
        real: dict[int, int] = {}
        for id_, name in names.items():
            stand_in = plain.token_to_id(name)
            assert stand_in is not None
            real[stand_in] = id_
        return plain, stand_ins, real

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        skip = self.all_special_ids if skip_special_tokens else frozenset()
        raw = b"".join([self.token_bytes(id_) for id_ in token_ids if id_ not in skip])
        if self.strips_leading_space:
            raw = raw.removeprefix(b" ")
        return raw.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            # What stands in the text: "▁<tool>" if the normalizer puts a space before each text.
            token = self._normalized.get(token_id) or self.id_to_token(token_id)
            known = b"" if token is None else self._decoder.token_bytes(token)
            self._bytes[token_id] = known
        return known

    def id_to_token(self, token_id: int) -> str | None:
        if token_id in self._added:  # the backend would return its normalized form
            return self._added[token_id].content
        if self._table is not None:
            return self._table.id_to_token(token_id)
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def token_to_id(self, token: str) -> int | None:
        return (self._table or self._backend).token_to_id(token)

    def _role_id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self.token_to_id(token)


def _encode(backend: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        if len(text) <= UNLOCKED_CHARACTERS:
            return backend.encode(text, add_special_tokens=False)
        return backend.encode_batch([text], add_special_tokens=False)[0]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library's class derives from no other
            raise
        raise InvalidRequestError(
            "The model's tokenizer fails on this text.", fix="Use another text, or --tokenizer."
        ) from None


def _match_special_tokens_as_written(backend: tokenizers.Tokenizer) -> None:
    """Undo `normalized` on special tokens.

    The library searches for the normalized form of such a token, e.g. with a space in front. So
    after other text, a token that a chat template writes would be read as plain text.
    """
    as_written = [
        AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=False,
        )
        for token in backend.get_added_tokens_decoder().values()
        if token.special and token.normalized
    ]
    backend.add_special_tokens(as_written)


def _truncated(parts: list[list[int]], max_tokens: int, around: int, side: str) -> list[list[int]]:
    """Shorten one text; of two, the longer one until both have the same length, then both."""
    room = max_tokens - around
    if room < len(parts):
        raise InvalidRequestError(
            f"The prompt is to be cut to {max_tokens} tokens, of which {around} are special ones.",
            fix=f"Allow at least {around + len(parts)}.",
            param="truncate_prompt_tokens",
        )
    lengths = [len(part) for part in parts]
    if sum(lengths) <= room:
        return parts
    kept = [room]
    if len(parts) == 2:
        short = min(*lengths, room // 2)
        kept = [min(length, room - short) for length in lengths]
        if sum(kept) > room:
            kept = [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]
    cut = zip(parts, kept, strict=True)
    return [part[:count] if side == "right" else part[len(part) - count :] for part, count in cut]


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The text has half of a surrogate pair at position {error.start}.",
            fix="Send valid Unicode.",
        ) from error
