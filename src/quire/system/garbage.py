"""Python's garbage collector, switched off during imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off; also a decorator.

    Imports create hundreds of thousands of permanent objects. Scanning them again and again takes
    a sixth of their time. Afterwards they count as old, so they are not scanned as new ones.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # else the caller froze objects on purpose
            gc.freeze()
            gc.unfreeze()  # all is in the oldest generation now
        if enabled:
            gc.enable()
