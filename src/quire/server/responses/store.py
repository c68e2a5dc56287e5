"""Stored responses, in memory, for retrieval and for the next turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http import HTTPStatus

from quire.server.errors import ApiError
from quire.server.http.json_text import encode
from quire.server.responses.events import EventLog
from quire.server.responses.item_types import Item, as_input, new_id
from quire.server.responses.protocol import ResponseObject
from quire.system.records import dataclass

MAX_STORED_BYTES = 256 * 2**20
"""Maximum bytes of all responses as JSON; each turn is counted once."""


@dataclass(frozen=True, slots=True)
class Making:
    """The task that makes a background response.

    Attributes:
        task: ends with the response.
        flush: writes the generated text so far into the response.
    """

    task: asyncio.Task[None]
    flush: Callable[[], None]
    events: EventLog | None = None


@dataclass(slots=True)
class Stored:
    """A response and the conversation before it.

    Attributes:
        items: the conversation; items of earlier turns are shared with their responses.
        size: bytes of this turn.
        making: its task, for a background response; also after its end.
    """

    response: ResponseObject
    items: Sequence[Item]
    size: int
    making: Making | None = None

    @property
    def is_made(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self.making is None or self.making.task.done()

    def conversation(self) -> list[Item]:
        """Return the conversation including the answer."""
        return [*self.items, *as_input(self.response.output)]


class ResponseStore:
    """The latest responses within the limits; the oldest finished ones are evicted first."""

    def __init__(self, max_responses: int, max_bytes: int = MAX_STORED_BYTES) -> None:
        self.max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._of_item: dict[str, str] = {}
        """Answer item id → response id. Clients cannot guess these ids, unlike those they send."""

    def __len__(self) -> int:
        return len(self._kept)

    def new_id(self, request_id: str) -> str:
        """Return an id from the request's, or a random one if a client repeats its id."""
        wanted = f"resp_{request_id}"
        return new_id("resp") if wanted in self._kept else wanted

    def get(self, response_id: str, param: str | None = None) -> Stored:
        """Return a stored response.

        Raises:
            ApiError: 404 if it is not stored, or was evicted.
        """
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
        """Return an item of a stored answer as an input item.

        Raises:
            ApiError: 404 with the field `param`.
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
        """Store a response to `items`, or replace its earlier state."""
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
        """Delete a response, and cancel its task; raises as `get`."""
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
