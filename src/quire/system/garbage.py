"""Python's search for garbage, held off where there is none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Search for no garbage meanwhile; also a decorator.

    What is imported stays, hundreds of thousands of objects: to look through them again and again
    is a tenth of torch's import. Nor are they looked through as new ones afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # or they are somebody's wish
            gc.freeze()
            gc.unfreeze()  # all is in the oldest generation now
        if enabled:
            gc.enable()
