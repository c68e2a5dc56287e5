"""The core's reasons for ending a request, as text that separates its faults from the engine's."""

from __future__ import annotations

import re

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import NOT_FOLLOWED

_REASON = re.compile(r"Invalid request(?: \((?P<param>[^()]+)\))?: (?P<what>.*)", re.DOTALL)


def reason_of(error: Exception) -> str:
    """Return the text with which the core ends a request because of `error`."""
    if not isinstance(error, InvalidRequestError):
        return str(error) or repr(error)
    where = f" ({error.param})" if error.param else ""
    return f"Invalid request{where}: {error}"


def refusal_of(reason: str) -> InvalidRequestError | None:
    """Return the error in `reason` if it is the request's own fault, else None."""
    if reason.startswith(NOT_FOLLOWED):
        return InvalidRequestError(reason, param="structured_outputs")
    found = _REASON.fullmatch(reason)
    return found and InvalidRequestError(found["what"], param=found["param"])
