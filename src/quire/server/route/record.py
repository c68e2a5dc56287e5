"""What the router knows of servers whose tokens it does not see: the prompts that it sent them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from quire.core.messages import BlockChanges, CoreOutput, StepOutputs
from quire.core.request import FinishReason
from quire.routing.router import CacheAwareRouter, Prompt

CHUNK_BYTES = 256
"""Text that counts as one block of the prefix cache."""
CHUNK_TOKENS = 64
MAX_CHUNKS = 2**16
"""Chunks to remember per server: 16 MiB of text."""
MAX_READ = 2**20
"""Bytes of a body that the router reads, so that a long one does not stop the others."""
MAX_ITEMS = 4096
"""Messages that are compared one by one."""
MAX_ROWS = 64
"""Assumed rows of a server's batch."""


class TypicalCost:
    """A `StepCost` for unknown servers: only ratios matter. A decode step takes as long as twenty
    tokens of a prompt."""

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        """See `StepCost`."""
        return 0.02 + 0.001 * num_tokens if num_tokens else 0.0

    def copy_seconds(self, num_tokens: int) -> float:
        """See `StepCost`."""
        return 0.0


class SentPrompts:
    """Chooses a server by the prompts that each has been sent, and by its requests in progress."""

    def __init__(self, num_servers: int) -> None:
        self._router = CacheAwareRouter(
            num_servers, TypicalCost(), block_size=CHUNK_TOKENS, max_num_seqs=MAX_ROWS
        )
        self._known: list[dict[bytes, None]] = [{} for _ in range(num_servers)]
        self._ids = itertools.count()

    def choose(self, prompt: Prompt, among: int) -> int:
        """Return a server; see `Router.choose`."""
        return self._router.choose(prompt, among)

    def begin(self, server: int, prompt: Prompt) -> str:
        """Note that a server was sent a request; return the name for `answered` and `ended`."""
        name = str(next(self._ids))
        self._router.add(server, name, prompt)
        return name

    def answered(self, server: int, name: str, prompt: Prompt) -> None:
        """Note that a request has its first output: the server has its whole prompt cached."""
        known = self._known[server]
        for chunk in reversed(prompt.hashes):  # the last chunk of a prompt is forgotten first
            known.pop(chunk, None)
            known[chunk] = None
        gone = [*itertools.islice(known, max(0, len(known) - MAX_CHUNKS))]
        for chunk in gone:
            del known[chunk]
        blocks = BlockChanges([*prompt.hashes], gone)
        self._router.note(server, StepOutputs([CoreOutput(name, [0])], None, 0.0, blocks=blocks))

    def ended(self, server: int, name: str, num_parts: int) -> None:
        """Note that a request has ended after so many parts of its body, about one per token."""
        last = CoreOutput(name, [0] * num_parts, FinishReason.STOP)
        self._router.note(server, StepOutputs([last], None, 0.0))

    def failed(self, name: str) -> None:
        """Note that a request got no answer."""
        self._router.remove(name)

    def forget(self, server: int) -> None:
        """Forget the cache of a server that is gone."""
        self._known[server].clear()
        self._router.forget(server)


def prompt_of(body: bytes) -> Prompt:
    """Return what the router compares of a request's JSON body: hashes of its text's chunks.

    Of a long body it compares the beginning, as it is.
    """
    text, rest = body[:MAX_READ], max(0, len(body) - MAX_READ)
    if not rest:
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return Prompt((), 1)
        text = b"".join(_text(fields))
    digest, hashes = hashlib.sha256(), []
    for end in range(CHUNK_BYTES, len(text) + 1, CHUNK_BYTES):
        digest.update(text[end - CHUNK_BYTES : end])
        hashes.append(digest.digest())
    return Prompt(hashes, max(1, (len(text) + rest) * CHUNK_TOKENS // CHUNK_BYTES))


def _text(fields: Any) -> Iterable[bytes]:
    """Yield the parts of a request that the server's prefix cache depends on, in order."""
    if not isinstance(fields, dict):
        return
    for name in ("model", "cache_salt", "tools", "instructions", "system"):
        if name in fields:
            yield msgspec.json.encode(fields[name])
    for name in ("messages", "prompt", "input"):
        value: Any = fields.get(name)
        items = [value]
        # Items one by one: the next turn of a conversation begins with the bytes of this one.
        if isinstance(value, list) and len(value) <= MAX_ITEMS and not _are_tokens(value):
            items = value
        for item in items:
            if item is not None:
                yield item.encode() if isinstance(item, str) else msgspec.json.encode(item)


def _are_tokens(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], int)
