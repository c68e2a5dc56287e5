"""The interface of all tokenizers, and the one function that opens them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from quire.system.heap import trim_heap
from quire.text.tokenizers.dummy import DummyTokenizer

Side = Literal["left", "right"]


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
        vocab_size: one more than the largest id.
        special_tokens: role → text, e.g. {"bos_token": "<s>"}; what chat templates refer to.
        chat_templates: name → Jinja source; the usual one is "default".
    """

    vocab_size: int
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def all_special_ids(self) -> frozenset[int]:
        """Return ids without text: begin, end, roles of a chat …"""

    @property
    def special_token_strings(self) -> tuple[str, ...]:
        """Return the strings that `encode` reads as control tokens anywhere in a text."""

    @property
    def strips_leading_space(self) -> bool:
        """Return whether one space at the start of a decoded text belongs to the tokenizer."""

    @property
    def chat_template(self) -> str | None:
        """Return the model's chat template, or None."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, special tokens written in it included.

        With `add_special_tokens`, those that the model wants around every text are added.

        Raises:
            InvalidRequestError: `text` is not valid Unicode.
        """

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the tokens of `text`, without tokenizing it; 0 if unknown."""

    def encode_with_controls(self, text: str, controls: list[tuple[int, int]]) -> list[int]:
        """Return the ids of `text`, where only the spans `controls` are control tokens.

        `controls` are pairs [start, stop) in characters, in order, each a special token's text.
        Elsewhere what looks like one is ordinary text. Nothing is added around the text.
        """

    def encode_bounded(
        self,
        text: str,
        second: str | None = None,
        max_tokens: int | None = None,
        side: Side = "right",
    ) -> tuple[list[int], int]:
        """Return the ids of a text, or of two as one input, with special tokens around them.

        Beyond `max_tokens` the `side` of the text, or of the longer one of two, is left out.

        Returns:
            The ids, and where the second text begins; 0 where nothing tells the two apart.

        Raises:
            InvalidRequestError: a text is not valid Unicode, or `max_tokens` leaves no room for it.
        """

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; invalid UTF-8 becomes U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; empty for an unknown id."""

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, e.g. "▁the"; None for an unknown id."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it."""


def load_tokenizer(path: Path | None, *, vocab_size: int | None = None) -> Tokenizer:
    """Open the tokenizer of a model.

    Args:
        path: a folder with tokenizer.json, tokenizer.model, tekken.json, tiktoken.model,
            vocab.json and merges.txt, or vocab.txt; one of these files; a .gguf file; or None for
            a `DummyTokenizer` with `vocab_size` ids.

    Raises:
        CheckpointError: there is no tokenizer, or a file of it is damaged; names it.
        UnsupportedModelError: the tokenizer is of a kind that Quire does not read.
    """
    if path is None:
        if vocab_size is None:
            raise ValueError("a tokenizer without files needs vocab_size")
        return DummyTokenizer(vocab_size)
    if path.suffix.lower() == ".gguf":
        from quire.text.tokenizers.gguf_tokenizer import load_gguf

        tokenizer = load_gguf(path)
    else:
        from quire.text.tokenizers.tokenizer_files import load_files

        tokenizer = load_files(path)
    # Building 151,000 tokens and their merges leaves 55 MiB of freed memory behind.
    trim_heap()
    return tokenizer
