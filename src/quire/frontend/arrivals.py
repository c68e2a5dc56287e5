"""Which requests of an offline call arrive before each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.config import SchedulerConfig
from quire.core.options import RequestOptions

FIRST_SHARE = 1 / 16
"""Share of the texts that are tokenized before the first token is out."""

Arrival = tuple[str, tuple[Any, Any, RequestOptions]]
"""Request id; prompt, sampling or pooling parameters, and options."""


class Arrivals:
    """A queue of requests. Before each step, as many leave it as the step can compute.

    So the first answers begin while the last prompts are still text. Token ids need no
    tokenization and never wait.
    """

    def __init__(self, requests: Sequence[Arrival], scheduler: SchedulerConfig) -> None:
        self._left = deque(requests)
        self._step_tokens = scheduler.max_num_batched_tokens
        self._first = max(1, int(len(requests) * FIRST_SHARE))
        self._room = 0

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, begun: bool, idle: bool) -> Iterator[Arrival]:
        """Yield the requests that arrive before the next step. Call `count` after each.

        Args:
            begun: whether a token is out.
            idle: whether the core has no work; then at least one request arrives.
        """
        self._first = max(self._first, int(idle))
        self._room = self._step_tokens
        while self._left and (self._room > 0 or _is_ids(self._left[0])):
            if not begun and not _is_ids(self._left[0]):
                if self._first == 0:
                    return
                self._first -= 1
            yield self._left.popleft()

    def count(self, tokens: int) -> None:
        """Subtract the last request's tokens from the next step's budget."""
        self._room -= tokens


def _is_ids(arrival: Arrival) -> bool:
    prompt = arrival[1][0]
    return isinstance(prompt, list) or (isinstance(prompt, Mapping) and "prompt" not in prompt)
