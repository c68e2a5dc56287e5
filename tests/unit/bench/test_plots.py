"""The pictures of `quire bench serve`."""

from __future__ import annotations

import io

import pytest

from quire.bench.results.plots import itl_histogram
from quire.bench.serving.sender import Outcome

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("chunks", [[], [1.5], [1.5, 1.5], [1.5, 1.6, 1.9]])
def test_gaps_are_drawn_however_few_there_are(chunks: list[float]) -> None:
    """Answers that came as one chunk have no gaps; warnings are errors here."""
    figure = itl_histogram("m", [Outcome(1.0, chunks, 2.0, 3, sent=1.0)])
    figure.savefig(io.BytesIO(), format="png")
