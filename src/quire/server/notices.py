"""Reports in `warnings` which fields of a request had no effect, or another effect."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from quire.server.errors import not_supported
from quire.server.state import server_state

MAX_NOTICES = 64
"""Most notices of a request; one more line counts the rest."""
LONGEST_PARAM = 128
"""Characters."""


class Notice(msgspec.Struct):
    """A field without effect, or with another effect than requested."""

    param: str
    message: str

    def __post_init__(self) -> None:
        if len(self.param) > LONGEST_PARAM:  # an answer must not repeat a client's megabytes
            self.param = f"{self.param[:LONGEST_PARAM]} …"


Warnings = list[Notice] | UnsetType
"""The field `warnings` of an answer; absent without warnings."""


class Notices:
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
        """Return the first `MAX_NOTICES`, and the number of others; UNSET without any."""
        if not self._more:
            return [*self._found] or UNSET
        return [*self._found, Notice("", f"There are {self._more} more notices.")]


def all_notices(request: Request) -> Notices:
    """Return the notices of a request, to read and to add to."""
    found: Notices = request.scope["state"].setdefault("notices", Notices())
    return found


def notices_of(request: Request) -> Warnings:
    """Return the notices of a request so far, as its answer reports them."""
    return all_notices(request).warnings()


def ignore(request: Request, param: str, message: str) -> None:
    """Report that a field has no effect.

    Raises:
        ApiError: 400, with `--strict-fields`.
    """
    if server_state(request).options.strict_fields:
        raise not_supported(param, message)
    report(request, Notice(param, message))


def report(request: Request, notice: Notice) -> None:
    """Report that a field has no effect, and count it, by the path of the route."""
    note(request, notice)
    names = {value: f"{{{name}}}" for name, value in request.path_params.items()}
    route = "/".join(names.get(part, part) for part in request.scope["path"].split("/"))
    server_state(request).engine.stats.ignored_fields[route] += 1


def note(request: Request, notice: Notice) -> None:
    """Report that a field has another effect than requested."""
    all_notices(request).add(notice)
