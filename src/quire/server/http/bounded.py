"""h11's connection, with limits that h11 lacks."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import h11

_LINE_END = b"\r\n"
_LENGTHS = {b"content-length", b"transfer-encoding"}


class BoundedConnection(h11.Connection):
    """Refuses long headers in any split, of which h11 limits only incomplete ones; other versions
    of HTTP; and bodies with two lengths, of which a proxy may have taken the other one (RFC 9112,
    6.1). Accepts an empty line before a request (RFC 9112, 2.2)."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            data = self.trailing_data[0]
            if _LINE_END.startswith(data):
                return h11.NEED_DATA
            if data.startswith(_LINE_END):
                self._receive_buffer.maybe_extract_at_most(len(_LINE_END))
        before = len(self._receive_buffer)
        event = super().next_event()
        size = before - len(self._receive_buffer)
        if not isinstance(event, h11.Request):
            return event
        if size > self._max_incomplete_event_size:
            raise h11.RemoteProtocolError(
                f"a head of {size} bytes",
                error_status_hint=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError(
                f"its version is {event.http_version.decode()}",
                error_status_hint=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            )
        if _LENGTHS.issubset(dict(event.headers)):
            raise h11.RemoteProtocolError(
                "it has Content-Length and Transfer-Encoding; send one of them"
            )
        return event
