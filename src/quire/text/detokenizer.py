"""Turn token ids into text as they arrive, in time proportional to the new tokens."""

from __future__ import annotations

import codecs

from quire.text.tokenizers.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Converts the output's tokens into text as they arrive.

    No delta contains an incomplete character; bytes that are not UTF-8 become U+FFFD as with
    `bytes.decode(errors="replace")`; no text of the prompt is repeated. Let `P` and `O` be the
    bytes of prompt and output, and `T` the incomplete character at the end of `P`:

    - the joined deltas and the flush are the text of `T + O`;
    - but if `O` does not continue `T`, the U+FFFD for `T` belongs to the prompt and is omitted.

    So a character that begins in the prompt and ends in the output belongs to the output. If no
    text precedes the output, a leading space that the tokenizer adds is dropped, as in any decoded
    text.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: list[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.all_special_ids if skip_special_tokens else frozenset()
        self._parts: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_tail = self._incomplete_tail(prompt_token_ids)
        self._decoder.decode(self._prompt_tail)
        self._at_start = tokenizer.strips_leading_space and not any(
            self._bytes_of(id_) for id_ in prompt_token_ids
        )

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append(self, token_ids: list[int]) -> str:
        """Return the text that `token_ids` add; incomplete characters are held back."""
        return self._decode(b"".join([self._bytes_of(id_) for id_ in token_ids]), final=False)

    def flush(self) -> str:
        """Return the rest after the last token: an incomplete character becomes U+FFFD."""
        if self._prompt_tail:  # no output byte followed, so it belongs to the prompt
            self._prompt_tail = b""
            self._decoder.reset()
        return self._decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        return b"" if token_id in self._skip else self._tokenizer.token_bytes(token_id)

    def _decode(self, raw: bytes, *, final: bool) -> str:
        if raw and self._at_start:
            self._at_start = False
            raw = raw.removeprefix(b" ")
        if raw and self._prompt_tail:
            if not _is_prefix(self._prompt_tail + raw[:1]):
                self._decoder.reset()
            self._prompt_tail = b""
        text = self._decoder.decode(raw, final)
        if text:
            self._parts.append(text)
        return text

    def _incomplete_tail(self, prompt_token_ids: list[int]) -> bytes:
        """Return the bytes (at most three) of an incomplete character at the prompt's end."""
        end = b""
        for token_id in reversed(prompt_token_ids):
            end = self._bytes_of(token_id)[-3:] + end
            if len(end) >= 3:
                break
        for length in range(1, min(3, len(end)) + 1):
            if end[-length] >= 0xC2:  # a lead byte always begins a character
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                decoder.decode(end[-length:])
                return decoder.getstate()[0]
        return b""


def _is_prefix(raw: bytes) -> bool:
    """Return whether `raw` begins or is a valid character."""
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(raw)
    except UnicodeDecodeError:
        return False
    return True
