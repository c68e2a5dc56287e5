"""Time spent in the front end and in the core, under one list of names."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.messages import CoreTimes

PARTS = {
    "http": "connections, parsing, validation, answers: the rest of the API's event loop",
    "tokenize": "prompts and chat templates to tokens",
    "images": "decoding and resizing images",
    "queue": "requests waiting for the batch, summed over requests",
    "receive": "the core adding requests, including hashing",
    "schedule": "choosing a step's tokens and blocks",
    "prepare": "a step's inputs",
    "model": "the forward pass and the logits",
    "encode": "the tower reading images",
    "sample": "logits to tokens",
    "update": "the scheduler applying a step's tokens",
    "core_send": "the core encoding and sending its outputs",
    "detokenize": "tokens to text",
    "send": "texts to events, and events to sockets",
    "idle": "the core waiting for requests",
}
"""Name → meaning. The core's parts are wall time and add up to its total. The front end's parts
are CPU time, because they take it from the kernels."""

CORE_PARTS = (
    "receive", "schedule", "prepare", "model", "encode", "sample", "update", "core_send",
    "idle",
)  # fmt: skip
"""The core's parts."""


class FrontTimes:
    """The front end's CPU seconds since the start; a few clock reads per request, three per step.

    Attributes:
        tokenize: prompts and chat templates to tokens, in any thread.
        images: decoding and resizing images, in processes and threads.
        detokenize: steps of the core to texts.
        send: texts to their readers; over HTTP, encoding and writing events.
    """

    def __init__(self) -> None:
        self.tokenize = 0.0
        self.images = 0.0
        self.detokenize = 0.0
        self.send = 0.0
        self._loop: int | None = None
        self._loop_start = 0.0
        self._loop_tokenize = 0.0
        self._lock = threading.Lock()

    def watch_loop(self) -> None:
        """Count the rest of this thread's time as `http` from now on."""
        self._loop = threading.get_ident()
        self._loop_start = time.thread_time()

    @property
    def offline(self) -> bool:
        return self._loop is None

    @property
    def http(self) -> float:
        """Return the rest of the event loop's thread: connections, parsing, validation, answers.

        Read it in that thread; 0.0 without one.
        """
        if self._loop is None:
            return 0.0
        named = self.detokenize + self.send + self._loop_tokenize
        return max(0.0, time.thread_time() - self._loop_start - named)

    @contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Count the time inside as tokenization; safe in any thread."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.add_tokenize(
                time.thread_time() - start, in_loop=threading.get_ident() == self._loop
            )

    def add_tokenize(self, seconds: float, *, in_loop: bool = False) -> None:
        with self._lock:
            self.tokenize += seconds
            self._loop_tokenize += seconds * in_loop


def joined(front: FrontTimes, core: CoreTimes | None, queue: float) -> dict[str, float]:
    """Return seconds since the start by the names of `PARTS`; call it in the event loop's thread.

    Args:
        queue: seconds that requests have waited.
    """
    core = core or CoreTimes()
    found = {name: getattr(core, name) for name in CORE_PARTS if name != "core_send"}
    found |= {
        "http": front.http,
        "tokenize": front.tokenize,
        "images": front.images,
        "queue": queue,
        "core_send": core.send,
        "detokenize": front.detokenize,
        "send": front.send,
    }
    if front.offline:  # one thread tokenizes between two steps and detokenizes after each
        found["receive"] = max(0.0, core.receive - front.tokenize)
        found |= {"core_send": 0.0, "detokenize": core.send, "send": 0.0}
    return {name: found[name] for name in PARTS}
