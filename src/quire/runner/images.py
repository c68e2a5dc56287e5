"""Images of sequences: their positions, and the encoder cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import HostArray
from quire.core.images import ImageSpan

if TYPE_CHECKING:
    from quire.models.vision.tower import Pieces, Tower

Positions = NDArray[np.int64]


class SequenceImages:
    """The images of one sequence, and the positions of its tokens.

    Attributes:
        spans: in the prompt's order.
        turned: positions have three parts.
    """

    __slots__ = ("_positions", "num_prompt", "spans", "turned")

    def __init__(self, spans: Sequence[ImageSpan], num_prompt: int) -> None:
        self.spans = spans
        self.num_prompt = num_prompt
        self.turned = any(span.grid is not None for span in spans)
        self._positions: Positions | None = None

    def positions(self, start: int, count: int) -> Positions:
        """Return time, height and width of tokens from `start` on, int64 [3, count]."""
        if self._positions is None:
            self._positions = positions_of(self.num_prompt, self.spans)
        known = self._positions[:, start : start + count]
        first = max(start, self.num_prompt)
        # Text behind the prompt counts on from the largest position.
        shift = int(self._positions.max()) + 1 - self.num_prompt
        more = np.arange(first, start + count, dtype=np.int64) + shift
        return np.concatenate([known, np.broadcast_to(more, (3, len(more)))], axis=1)


class EncoderCache:
    """The rows of images, of which the least recently used are dropped.

    Args:
        most_bytes: of all rows. The last image stays, whatever its size.

    Attributes:
        meter: of the tower's ops.
        encoded_tokens: rows that the tower has computed since the start.
        encoded_images: digests of the images of these rows that are not reported yet.
        seconds: what that took.
    """

    def __init__(self, tower: Tower, most_bytes: int) -> None:
        self._tower = tower
        self.meter = tower.meter
        self._most = most_bytes
        self._bytes = 0
        self._rows: OrderedDict[bytes, HostArray] = OrderedDict()
        self._begun: tuple[bytes, Pieces] | None = None
        self.encoded_tokens = 0
        self.encoded_images: list[bytes] = []
        self.seconds = 0.0

    def rows(self, image: ImageSpan) -> HostArray:
        """Return an image's rows [rows, hidden] in the model's dtype."""
        if (found := self._rows.get(image.digest)) is not None:
            self._rows.move_to_end(image.digest)
            return found
        if image.given:
            return self._add(image, self._tower.given(image))
        began = perf_counter()
        if self._begun is not None and self._begun[0] == image.digest:
            (_, pieces), self._begun = self._begun, None
        else:
            pieces = self._tower.read(image)
        try:
            while True:
                next(pieces)
        except StopIteration as end:
            found = end.value
        self.seconds += perf_counter() - began
        self._note(image, found)
        return self._add(image, found)

    def read_ahead(self, image: ImageSpan, seconds: float) -> bool:
        """Read a part of an image, one piece at least; return whether nothing is left to read.

        One image can be begun. Another one ends it.

        Args:
            image: without `pixels` if it was begun; if it is not here any more, nothing is read.
            seconds: the work for one step. A piece that would take longer waits for the next.
        """
        if image.digest in self._rows:
            return True
        begun = self._begun
        if begun is None or begun[0] != image.digest:
            if not image.pixels:
                return True
            begun = self._begun = image.digest, self._tower.read(image, in_pieces=True)
        began = now = perf_counter()
        longest = 0.0
        try:
            while now - began + longest <= seconds or now == began:
                before = now
                next(begun[1])
                now = perf_counter()
                longest = max(longest, now - before)
        except StopIteration as end:
            self._begun = None
            self._note(image, end.value)
            self._add(image, end.value)
        except Exception:  # the step that needs the rows meets it again, and knows whose it is
            self._begun = None
        finally:
            self.seconds += perf_counter() - began
        return self._begun is None

    def _note(self, image: ImageSpan, found: HostArray) -> None:
        self.encoded_tokens += len(found)
        self.encoded_images.append(image.digest)

    def _add(self, image: ImageSpan, found: HostArray) -> HostArray:
        """Keep an image's rows, and drop those of others for them."""
        self._rows[image.digest] = found
        self._bytes += found.nbytes
        while self._bytes > self._most and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._bytes -= dropped.nbytes
        return found


def positions_of(num_tokens: int, spans: Sequence[ImageSpan]) -> NDArray[np.int64]:
    """Return the time, height and width of each prompt token, int64 [3, num_tokens].

    Text counts in all three. The rows of an image share one time, and count in height and width;
    text behind it goes on after the larger of both.
    """
    positions = np.empty((3, num_tokens), dtype=np.int64)
    at = token = 0
    for span in spans:
        text = span.start - token
        positions[:, token : span.start] = np.arange(at, at + text)
        at += text
        assert span.grid is not None, "spans of one model are alike"
        height, width = span.grid
        positions[0, span.start : span.end] = at
        positions[1, span.start : span.end] = at + np.repeat(np.arange(height), width)
        positions[2, span.start : span.end] = at + np.tile(np.arange(width), height)
        at += max(height, width)
        token = span.end
    positions[:, token:] = np.arange(at, at + num_tokens - token)
    return positions
