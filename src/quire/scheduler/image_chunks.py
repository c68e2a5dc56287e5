"""Chunks of prompts with images: where they may end, and how many images a step reads."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.batch import Column
from quire.core.errors import InvalidRequestError
from quire.core.request import Request

_ALL = 2**30
"""More images than any step has."""


class ImageChunks:
    """Moves the ends of a step's chunks.

    While requests decode, a step begins one image: the tower reads it whole, and each stream waits
    for it. Else several images of a prompt would make the streams wait for all of them.

    A chunk that would end inside an image whose rows see each other ends before it. The first one
    in the queue that has nothing else to compute takes the whole image, past the step's budget if
    need be: budgets are small while others decode, and an image must not wait for them to end. Its
    rows always fit within `most`, which is at least an image and a token of each sequence
    (`resolve.images`).

    Args:
        most: tokens that a step can hold.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = _ALL

    def check(self, request: Request, max_num_seqs: int) -> None:
        """Raise InvalidRequestError if no step can hold what has to be computed in one."""
        most = self._most - max_num_seqs + 1
        for first, last in _wholes(request):
            if last - first > most:
                raise InvalidRequestError(
                    f"{last - first} tokens of the prompt see each other and must be computed in "
                    f"one step, but a step holds {most} of a prompt.",
                    fix="Shorten the prompt, or start with a larger --max-num-batched-tokens.",
                    param="prompt",
                )

    def level(
        self, requests: Sequence[Request], wanted: Column, computed: Column, scheduled: Column
    ) -> None:
        """Change `scheduled`, int64 [n]: the tokens that each running request computes.

        Begins a step: `chunk` counts its images from here on.

        Args:
            wanted: tokens that each has to compute; 1 means it decodes.
        """
        self._left = 1 if (wanted == 1).any() else _ALL
        waits = True
        for row in ((wanted > 1) & (scheduled > 0)).nonzero()[0].tolist():
            start, count = int(computed[row]), int(scheduled[row])
            room = self._most - int(scheduled.sum()) + count if waits else count
            scheduled[row] = self.chunk(requests[row], start, count, room)
            waits = waits and scheduled[row] <= count

    def chunk(self, request: Request, start: int, count: int, room: int) -> int:
        """Return how many tokens from `start` on to compute, if `count` are in the budget.

        Args:
            room: tokens that the step can hold for it; 0 are returned if an image needs more.
        """
        count = _unsplit(request, start, count, room)
        begun = [span for span in request.inputs.images if start <= span.start < start + count]
        for number, span in enumerate(begun):
            edge = span.start if span.whole is None else span.whole[0]
            # What is computed in one step has all its images there.
            if number >= self._left and (edge > start or number == 0):
                self._left -= number
                return max(0, edge - start)
        self._left -= len(begun)
        return count


def _unsplit(request: Request, start: int, count: int, room: int) -> int:
    """Return the tokens of a chunk that ends inside no image whose rows see each other."""
    for first, last in _wholes(request):
        if first < start + count < last:
            if first > start:
                return first - start
            return last - start if last - start <= room else 0
    return count


def _wholes(request: Request) -> list[tuple[int, int]]:
    """Return the first and last positions of what has to be computed in one step."""
    return [span.whole for span in request.inputs.images if span.whole is not None]
