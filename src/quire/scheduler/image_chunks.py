"""Chunks of prompts with images: where they may end, and which image a step reads ahead."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from quire.core.batch import Column, ModelOutput, ReadAhead
from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.request import Request

_KNOWN = 1024
"""Images that were read ahead. One that is forgotten is asked for again, and then found at once."""


class ImageChunks:
    """Moves the ends of a step's chunks.

    While requests decode, no chunk reads an image, because the tower would hold all streams. The
    chunk ends before it, and the step reads a part of it ahead (`core.batch.ReadAhead`). Otherwise
    a chunk reads its images whole.

    A chunk that would end inside an image whose rows see each other ends before it. The first one
    in the queue that has nothing else to compute takes the whole image, past the step's budget if
    need be: budgets are small while others decode, and an image must not wait for them to end. Its
    rows always fit within `most`, which is at least an image and a token of each sequence
    (`resolve.images`).

    Args:
        most: tokens that a step can hold.

    Attributes:
        num_encoded: tokens whose images all landed steps have read.
        num_read: images that they have read ahead.
        streams: requests decode in this step, so images are read ahead.
    """

    def __init__(self, most: int) -> None:
        self.num_encoded = self.num_read = 0
        self._most = most
        self.streams = self._embeds = False
        self._next: tuple[str, ImageSpan] | None = None
        self._begun = b""
        self._read: OrderedDict[bytes, None] = OrderedDict()

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

        Begins a step: `take` returns the first image that a chunk ends before.

        Args:
            wanted: tokens that each has to compute; 1 means it decodes.
        """
        self.streams, self._next = bool((wanted == 1).any()), None
        self._embeds = False
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
        if (span := self._unread(request, start, start + count)) is None:
            return count
        return max(0, (span.whole or (span.start, 0))[0] - start)

    def is_next(self, request: Request) -> bool:
        """Return whether a request may begin in this step, as all may but images to be embedded.

        Of prompts that are an image alone a step takes one: texts behind it do not wait for the
        images of many.
        """
        images = request.inputs.images
        if not images or images[0].rows != request.num_tokens:
            return True
        embeds, self._embeds = self._embeds, True
        return not embeds

    def is_unread(self, request: Request, start: int) -> bool:
        """Return whether the first image behind token `start` has to be read ahead."""
        images = request.inputs.images
        first = next((span for span in images if span.end > start), None)
        if first is None or images[0].rows == request.num_tokens:
            return False
        _, end = first.whole or (0, first.end)
        return self._unread(request, start, end) is not None

    def take(self, seconds: Callable[[], float]) -> ReadAhead | None:
        """Return what the step reads ahead, and for how long; None if nothing.

        Its pixels go with the first part alone. An executor that has lost them reads the image
        whole in the end.
        """
        if self._next is None:
            return None
        request_id, span = self._next
        begun, self._begun = self._begun, span.digest
        if span.digest == begun:
            span = replace(span, pixels=b"")
        return ReadAhead(span, seconds(), request_id)

    @property
    def reads(self) -> bool:
        """Return whether the image of the last step is not read whole yet."""
        return self._next is not None and self._next[1].digest not in self._read

    def observe(self, result: ModelOutput) -> None:
        """Take note of what a step has read."""
        self.num_encoded += result.encoded_tokens
        if result.read_ahead is not None:
            self.num_read += 1
            self._read[result.read_ahead] = None
            self._read.move_to_end(result.read_ahead)
            if len(self._read) > _KNOWN:
                self._read.popitem(last=False)

    def _unread(self, request: Request, start: int, end: int) -> ImageSpan | None:
        """Return the first image of tokens [start, end) that has to be read ahead."""
        for span in request.inputs.images if self.streams else ():
            known = span.given or span.digest in self._read
            if span.start < end and span.end > start and not known:
                self._next = self._next or (request.request_id, span)
                return span
        return None


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
