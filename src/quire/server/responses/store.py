"""Stored responses, in memory, for retrieval and for the next turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from quire.server.errors import ApiError
from quire.server.json_text import encode
from quire.server.responses.events import EventLog
from quire.server.responses.item_types import Item
from quire.server.responses.items import as_input, new_id
from quire.server.responses.protocol import ResponseObject

MAX_STORED_BYTES = 256 * 2**20
"""Of all responses, as JSON; what earlier turns said is counted with them alone."""


@dataclass(frozen=True, slots=True)
class Making:
    """How a response is made in the background.

    Attributes:
        task: ends when it is there.
        flush: enters into the response what has come of it so far.
        events: of one that is streamed.
    """

    task: asyncio.Task[None]
    flush: Callable[[], None]
    events: EventLog | None = None


@dataclass(slots=True)
class Stored:
    """A response and what it answers.

    Attributes:
        items: the conversation up to it; items of earlier turns are shared with theirs.
        size: bytes that it takes.
        making: of one in the background, also when that has ended.
    """

    response: ResponseObject
    items: Sequence[Item]
    size: int
    making: Making | None = None

    @property
    def is_made(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.making is None or self.making.task.done()

    def conversation(self) -> list[Item]:
        """Up to the answer's end."""
        return [*self.items, *as_input(self.response.output)]


class ResponseStore:
    """The latest responses, as many as may be; the oldest that have ended go first."""

    def __init__(self, max_responses: int, max_bytes: int = MAX_STORED_BYTES) -> None:
        self.max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._of_item: dict[str, str] = {}
        """Items of answers → their responses. Only these have ids that no client can guess."""

    def __len__(self) -> int:
        return len(self._kept)

    def new_id(self, request_id: str) -> str:
        """That of the request, but for a client that repeats its own."""
        wanted = f"resp_{request_id}"
        return new_id("resp") if wanted in self._kept else wanted

    def get(self, response_id: str, param: str | None = None) -> Stored:
        """Raises `ApiError`, 404, where it is not, or not any more."""
        found = self._kept.get(response_id)
        if found is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"There is no stored response {response_id!r}; the server stores the latest "
                f"{self.max_responses}, except those with store = false.",
                param=param,
                code="response_not_found",
            )
        return found

    def item(self, item_id: str, param: str) -> Item:
        """Return an item of a stored answer, as the next turn has it.

        Raises:
            ApiError: 404, naming the field `param`.
        """
        stored = self._kept.get(self._of_item.get(item_id, ""))
        found = [] if stored is None else [i for i in stored.response.output if i.id == item_id]
        if not found:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"There is no item {item_id!r} in a stored answer; send the item itself.",
                param=param,
                code="item_not_found",
            )
        return as_input(found)[0]

    def put(
        self,
        response: ResponseObject,
        earlier: Sequence[Item],
        items: Sequence[Item],
        making: Making | None = None,
    ) -> Stored:
        """Keep a response to `items`, or what has become of it."""
        before = self._remove(response.id)
        making = making or (None if before is None else before.making)
        size = len(encode(items)) + len(encode(response))
        if making is not None and making.events is not None:
            size += making.events.size
        stored = self._kept[response.id] = Stored(response, [*earlier, *items], size, making)
        self._num_bytes += size
        self._of_item.update((item.id, response.id) for item in response.output)
        ended = [name for name, one in self._kept.items() if one.is_made]
        for name in ended:
            if len(self._kept) <= self.max_responses and self._num_bytes <= self._max_bytes:
                break
            self._remove(name)
        return stored

    def delete(self, response_id: str) -> None:
        """Forget a response, and end what still makes it; raises as `get`."""
        stored = self.get(response_id)
        if stored.making is not None:
            stored.making.task.cancel()
        self._remove(response_id)

    def _remove(self, response_id: str) -> Stored | None:
        if (stored := self._kept.pop(response_id, None)) is not None:
            self._num_bytes -= stored.size
            for item in stored.response.output:
                self._of_item.pop(item.id, None)
        return stored
