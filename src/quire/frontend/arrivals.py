"""Many requests at once, offline: the first run while the last are still text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from quire.core.options import RequestOptions
from quire.frontend.input.input_processor import ProcessedRequest

FIRST_SHARE = 1 / 16
"""Of the texts that arrive together, those that become tokens before the first token is out."""

Arrival = tuple[str, Any, Any, RequestOptions]
"""Request id, prompt, sampling or pooling parameters, options."""


class Processor(Protocol):
    """`InputProcessor`, or `PoolingInput`, each with prompts and parameters of its own."""

    def process(
        self,
        request_id: str,
        prompt: Any,
        params: Any,
        *,
        arrival_time: float,
        options: RequestOptions,
    ) -> ProcessedRequest: ...


class Arrivals:
    """Requests in line to be tokenized, as many before a step as it can compute.

    What comes as token ids costs nothing and is never kept.

    Args:
        requests: in the order in which they are to be served, found to be good by the
            processor's `check`.
        tokens_a_step: most tokens that one step computes.
    """

    def __init__(
        self, processor: Processor, requests: Sequence[Arrival], tokens_a_step: int
    ) -> None:
        self._processor = processor
        self._left = deque(requests)
        self._tokens_a_step = tokens_a_step
        self._first = max(1, int(len(requests) * FIRST_SHARE))
        self._now = time.monotonic()

    def __bool__(self) -> bool:
        """Whether any are left."""
        return bool(self._left)

    def take(self, *, begun: bool, idle: bool) -> Iterator[ProcessedRequest]:
        """Those that arrive before the next step.

        Args:
            begun: whether a token is out.
            idle: whether nothing else is to be computed; one arrives then in any case.

        Raises:
            InvalidRequestError: a text has too many tokens.
        """
        self._first = max(self._first, int(idle))
        room = self._tokens_a_step
        while self._left and room > 0:
            request_id, prompt, params, options = self._left[0]
            is_text = not _is_ids(prompt)
            if is_text and not begun:
                if self._first == 0:
                    return
                self._first -= 1
            self._left.popleft()
            request = self._processor.process(
                request_id, prompt, params, arrival_time=self._now, options=options
            )
            room -= len(request.prompt_token_ids) if is_text else 0
            yield request


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list) or (isinstance(prompt, Mapping) and "prompt" not in prompt)
