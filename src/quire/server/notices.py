"""What a request asked for and did not get, told in its answer as `warnings`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from quire.server.errors import not_supported
from quire.server.state import server_state

MAX_NOTICES = 64
"""Of one request; the rest are one line that counts them."""
LONGEST_PARAM = 128
"""Characters."""


class Notice(msgspec.Struct):
    """A field that had no effect, or another one than was asked for."""

    param: str
    message: str

    def __post_init__(self) -> None:
        if len(self.param) > LONGEST_PARAM:  # an answer must not repeat a client's megabytes
            self.param = f"{self.param[:LONGEST_PARAM]} …"


Warnings = list[Notice] | UnsetType
"""The field `warnings` of an answer; left out where there is nothing to tell."""


class Notices:
    """Those of one request."""

    def __init__(self) -> None:
        self._found: list[Notice] = []
        self._more = 0

    def add(self, notice: Notice) -> None:
        """Add a notice, unless it is there already."""
        if len(self._found) == MAX_NOTICES:
            self._more += 1
        elif notice not in self._found:
            self._found.append(notice)

    def warnings(self) -> Warnings:
        """Return the first `MAX_NOTICES`, and how many there are more; UNSET if there are none."""
        if not self._more:
            return [*self._found] or UNSET
        return [*self._found, Notice("", f"There are {self._more} more notices.")]


def all_notices(request: Request) -> Notices:
    """Return the notices of a request, to read and to add to."""
    found: Notices = request.scope["state"].setdefault("notices", Notices())
    return found


def notices_of(request: Request) -> Warnings:
    """Return the notices of a request so far, as its answer tells them."""
    return all_notices(request).warnings()


def ignore(request: Request, param: str, message: str) -> None:
    """Tell the client that a field has no effect.

    Raises:
        ApiError: 400, with `--strict-fields`.
    """
    if server_state(request).strict_fields:
        raise not_supported(param, message)
    report(request, Notice(param, message))


def report(request: Request, notice: Notice) -> None:
    """Tell the client of a field that has no effect, and count it."""
    note(request, notice)
    server_state(request).engine.stats.ignored_fields[request.scope["path"]] += 1


def note(request: Request, notice: Notice) -> None:
    """Tell the client of a field that has another effect than was asked for."""
    all_notices(request).add(notice)
