"""Images of sequences: their positions, and the encoder cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import HostArray
from quire.core.images import ImageSpan

if TYPE_CHECKING:
    from quire.models.vision.tower import Tower

Positions = NDArray[np.int64]


class SequenceImages:
    """The images of one sequence, and the positions of its tokens.

    Attributes:
        spans: in the prompt's order.
        num_prompt: tokens of the prompt.
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
        encoded_tokens: rows that the tower has computed since the start.
    """

    def __init__(self, tower: Tower, most_bytes: int) -> None:
        self._tower = tower
        self._most = most_bytes
        self._bytes = 0
        self._rows: OrderedDict[bytes, HostArray] = OrderedDict()
        self.encoded_tokens = 0

    def rows(self, image: ImageSpan) -> HostArray:
        """Return an image's rows [rows, hidden] in the model's dtype."""
        if (found := self._rows.get(image.digest)) is not None:
            self._rows.move_to_end(image.digest)
            return found
        if image.given:
            found = self._tower.given(image)
        else:
            found = self._tower.encode(image)
            self.encoded_tokens += len(found)
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
