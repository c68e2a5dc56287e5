"""Unique ids of requests and responses, even if clients repeat an X-Request-Id."""

from __future__ import annotations

import re
import secrets

REMEMBERED = 10_000
"""Ids of ended requests that are not given to a response again."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MARK = "~"
"""Divides a client's id from what makes it unique; not in a client's id."""
_PREFIX = re.compile(r"^[a-z]+[-_]")
"""Of a response's id: chatcmpl-, resp_ …"""


def choose_request_id(offered: str | None) -> str:
    """Return the client's id if it is harmless in a header and a log line; else a new one."""
    if offered is not None and _REQUEST_ID.fullmatch(offered):
        return offered
    return secrets.token_hex(16)


def engine_request_id(prefix: str) -> str:
    """Return an id for one engine request of the response `prefix`."""
    return f"{prefix}-{secrets.token_hex(8)}"


def names_of(engine_id: str) -> tuple[str, str, str]:
    """Return an engine request's id, its response's id and the `X-Request-Id` of both."""
    response = engine_id.rpartition("-")[0]
    return engine_id, response, _PREFIX.sub("", response, count=1).partition(_MARK)[0]


class RequestIds:
    """Ids for responses: the client's own at its first use.

    An id is taken until the request has ended, and is remembered for some time afterwards.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._active: set[str] = set()
        self._ended: dict[str, None] = {}

    def take(self, offered: str) -> str:
        """Return `offered` if no request has or had it; else one that begins with it."""
        if offered in self._active or offered in self._ended:
            offered = f"{offered}{_MARK}{secrets.token_hex(8)}"
        self._active.add(offered)
        return offered

    def release(self, taken: str) -> None:
        """End the request of an id that `take` returned."""
        self._active.remove(taken)
        self._ended[taken] = None
        if len(self._ended) > self._remembered:
            del self._ended[next(iter(self._ended))]
