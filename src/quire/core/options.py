"""What a request brings besides its prompt's tokens and its sampling parameters."""

from __future__ import annotations

from array import array

import msgspec

from quire.core.images import ImageSpan
from quire.core.lora import LoRARequest

NOT_LENT = -1


class LentBlocks(msgspec.Struct, array_like=True, frozen=True):
    """KV blocks in shared memory that a replica lends to another: the first ones of a prompt."""

    last: bytes
    """Hash of the last of these blocks, which covers those before it."""
    packed: bytes
    """int32: their numbers in order; `NOT_LENT` for those before a sliding window."""
    copied: bool = False
    """The owner needs its room: the borrower's request copies them as it begins."""

    @property
    def count(self) -> int:
        # Numbers are positive, so four such bytes are one `NOT_LENT`.
        return len(self.packed) // 4 - self.packed.count(b"\xff" * 4)

    @property
    def numbers(self) -> array[int]:
        return array("i", self.packed)

    @property
    def blocks(self) -> list[int]:
        return [block for block in self.numbers if block != NOT_LENT]


class KVTransfer(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """A request's part in a hand-off of KV blocks."""

    hands_over: bool = False
    """Report the prompt's blocks once other engines can find them."""
    promised: tuple[bytes, ...] = ()
    """Blocks that a producer has stored."""
    lent: LentBlocks | None = None
    """Blocks of the prompt that another replica of the engine lends."""
    first_only: bool = False
    """End after the first token of the answer: another replica goes on."""
    sampled: tuple[int, ...] = ()
    """The first tokens of the answer, which another replica has sampled."""


class RequestOptions(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Options of one request: one struct from the endpoint to the batch row.

    CONTRIBUTING.md says how to add one.
    """

    priority: int = 0
    """Lower runs first, under the priority policy."""
    cache_salt: str | None = None
    """Requests with different salts share no block of the prefix cache."""
    lora_request: LoRARequest | None = None
    """The adapter to compute with."""
    trace_headers: dict[str, str] | None = None
    """W3C Trace Context headers that make the request part of the client's trace."""
    arrival_time: float | None = None
    """On the monotonic clock; None means when the engine gets the request."""
    skip_reading_prefix_cache: bool = False
    """Compute the whole prompt, even if a prefix is cached."""
    kv_transfer: KVTransfer | None = None
    """Set if another engine computes the prompt, or the answer."""
    data_parallel_rank: int | None = None
    """The replica that computes it; None lets the router choose."""
    client: str = ""
    """Who asks. Clients take turns in the queue."""


NO_OPTIONS = RequestOptions()


class RequestInputs(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Inputs of one sequence: one struct from the front end to the batch row."""

    options: RequestOptions = NO_OPTIONS
    eos_token_ids: tuple[int, ...] = ()
    second_text: int = 0
    """Index of the first token of a pair's second text, for models with token types; 0 if none."""
    prompt_embeds: bytes | None = None
    """float32 [prompt tokens, hidden], in place of the prompt's tokens, which are `EMBEDDED`."""
    images: tuple[ImageSpan, ...] = ()
    """In the prompt's order."""


NO_INPUTS = RequestInputs()
