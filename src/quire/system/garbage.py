"""Python's garbage collector, switched off during imports."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off; also a decorator.

    Imports create hundreds of thousands of permanent objects. Scanning them again and again takes
    a sixth of their time. Afterwards they count as old, so they are not scanned as new ones.
    Where nothing was imported, nothing is moved.
    """
    enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # Frozen objects are the caller's on purpose; to count them takes a walk over all of them.
        if len(sys.modules) > modules and gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()  # all is in the oldest generation now
        if enabled:
            gc.enable()
