"""A tokenizer without files, for models with random weights."""

from __future__ import annotations

from typing import Literal

from quire.core.errors import ConfigError

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class DummyTokenizer:
    """Bytes are ids 0–255; any other id reads as a short made-up word.

    See `text.tokenizers.tokenizer.Tokenizer` for the meaning of each member.
    """

    bos_token_id = None
    eos_token_id = None
    all_special_ids: frozenset[int] = frozenset()
    special_token_strings: tuple[str, ...] = ()
    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 256:
            raise ConfigError(
                f"The vocabulary's {vocab_size} ids cannot hold every byte, as a model without a "
                "tokenizer needs.",
                fix="Set vocab_size to at least 256 in --hf-overrides, or name a --tokenizer.",
                param="hf_overrides",
            )
        self.vocab_size = vocab_size
        self.special_tokens: dict[str, str] = {}
        self.chat_templates = {"default": _CHAT_TEMPLATE}

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates["default"]

    def least_tokens(self, text: str) -> int:
        return len(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode(errors="replace"))

    def encode_with_controls(self, text: str, controls: list[tuple[int, int]]) -> list[int]:
        return self.encode(text)

    def encode_bounded(
        self,
        text: str,
        second: str | None = None,
        max_tokens: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> tuple[list[int], int]:
        first = self.encode(text)
        ids = first if second is None else first + self.encode(second)
        if max_tokens is not None and side == "left":
            ids = ids[-max_tokens:]
        return ids[:max_tokens], 0 if second is None else len(first)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join([self.token_bytes(id_) for id_ in token_ids]).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        return bytes([token_id]) if token_id < 256 else _word(token_id).encode()

    def id_to_token(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.vocab_size:
            return None
        return f"<0x{token_id:02X}>" if token_id < 256 else _word(token_id)

    def token_to_id(self, token: str) -> int | None:
        return next((id_ for id_ in range(self.vocab_size) if self.id_to_token(id_) == token), None)


_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def _word(token_id: int) -> str:
    """Return the id in base 26 as letters, after a space."""
    letters = ""
    while token_id:
        token_id, digit = divmod(token_id, 26)
        letters = _LETTERS[digit] + letters
    return f" {letters}"
