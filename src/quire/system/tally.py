"""A counter whose size is bounded by what it counts at present."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

K = TypeVar("K")


class Tally(Counter[K]):
    """A counter that holds no zeros, so that it does not grow with the names that come and go."""

    def change(self, name: K, by: int) -> None:
        """Add `by` to a name's count."""
        self[name] += by
        if not self[name]:
            del self[name]
