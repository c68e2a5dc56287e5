"""Where the front end's time goes: CPU seconds, because what it takes, the kernels lack."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class FrontTimes:
    """CPU seconds since the start, by part; a few clock reads a request and three a step.

    Attributes:
        tokenize: prompts and chat templates to tokens, in whichever thread.
        detokenize: steps of the core to texts.
        send: these texts to whoever reads them: for HTTP, events encoded and written.
    """

    def __init__(self) -> None:
        self.tokenize = 0.0
        self.detokenize = 0.0
        self.send = 0.0
        self._loop: int | None = None
        self._loop_start = 0.0
        self._loop_tokenize = 0.0
        self._lock = threading.Lock()

    def watch_loop(self) -> None:
        """From now on, `http` is what else this thread does."""
        self._loop = threading.get_ident()
        self._loop_start = time.thread_time()

    @property
    def http(self) -> float:
        """The rest of the event loop's thread: connections, parsing, validation, answers.

        Read it in that thread; 0.0 where there is none.
        """
        if self._loop is None:
            return 0.0
        named = self.detokenize + self.send + self._loop_tokenize
        return max(0.0, time.thread_time() - self._loop_start - named)

    @contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Count what is done inside as tokenization; safe in any thread."""
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
