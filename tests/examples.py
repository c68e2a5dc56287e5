"""How many examples Hypothesis draws where many are worth it."""

from __future__ import annotations

from hypothesis import settings


def examples(many: int) -> int:
    """Return a quarter of `many` in `make test`, which draws the same ones every time."""
    return many // 4 if settings.default.derandomize else many
