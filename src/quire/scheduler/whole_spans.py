"""Chunks that do not end inside an image whose rows see each other: such rows share a step."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.batch import Column
from quire.core.errors import InvalidRequestError
from quire.core.request import Request


class WholeSpans:
    """Moves the ends of a step's chunks.

    A chunk that would end inside such an image ends before it. The first one in the queue that
    has nothing else to compute takes the whole image, past the step's budget if need be: budgets
    are small while others decode, and an image must not wait for them to end. Its rows always fit
    within `most`, which is at least an image and a token of each sequence (`resolve.images`).

    Args:
        most: tokens that a step can hold.
        active: the model has such images.
    """

    def __init__(self, most: int, *, active: bool) -> None:
        self._most = most
        self._active = active

    def check(self, request: Request, max_num_seqs: int) -> None:
        """Raise InvalidRequestError if no step can hold what has to be computed in one."""
        most = self._most - max_num_seqs + 1
        for span in request.images:
            first, last = span.whole or (0, 0)
            if last - first > most:
                raise InvalidRequestError(
                    f"{last - first} tokens of the prompt see each other and must be computed in "
                    f"one step, but a step holds {most} of a prompt.",
                    fix="Shorten the prompt, or start with a larger --max-num-batched-tokens.",
                    param="prompt",
                )

    def level(self, requests: Sequence[Request], computed: Column, scheduled: Column) -> None:
        """Change `scheduled`, int64 [n]: the tokens that each running request computes."""
        if not self._active:
            return
        waits = True
        for row, request in enumerate(requests):
            if request.images and scheduled[row]:
                start, count = int(computed[row]), int(scheduled[row])
                room = self._most - int(scheduled.sum()) + count if waits else count
                scheduled[row] = self.chunk(request, start, count, room)
                waits = waits and scheduled[row] <= count

    def chunk(self, request: Request, start: int, count: int, room: int) -> int:
        """Return how many tokens from `start` on to compute, if `count` are in the budget.

        Args:
            room: tokens that the step can hold for it; 0 are returned if an image needs more.
        """
        for span in request.images if self._active else ():
            if span.whole is None:
                return count
            first, last = span.whole
            if first < start + count < last:
                if first > start:
                    return first - start
                return last - start if last - start <= room else 0
        return count
