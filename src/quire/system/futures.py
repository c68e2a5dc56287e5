"""Combines futures."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


def both(first: Future[Any], second: Future[Any]) -> Future[None]:
    """Return a future that is done when both are; it raises the first error of the two."""
    done: Future[None] = Future()

    def settle(_: Future[Any]) -> None:
        error = first.exception() or second.exception()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    first.add_done_callback(lambda _: second.add_done_callback(settle))
    return done
