"""The picture of a simulation: its labels can be read."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.extras import new_figure
from quire.simulate import plot

pytest.importorskip("matplotlib")


def test_labels_of_a_narrow_distribution_differ_and_lie_inside() -> None:
    figure = new_figure("--plot", 5, 4, "title")
    axes = figure.subplots()
    seconds = np.linspace(0.55, 0.63, 99) / 1e3
    seconds[:60] = seconds[0]
    plot._distribution(axes, "time to first token", seconds, np.arange(1, 100) / 99)
    figure.canvas.draw()
    labels = [each.get_text() for each in axes.get_xticklabels(which="both") if each.get_text()]
    assert len(labels) > 1
    assert len(set(labels)) == len(labels)
    frame = axes.get_window_extent()
    for text in axes.texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1
