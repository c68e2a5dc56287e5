"""What a plot is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Case = Mapping[str, str]


@dataclass(frozen=True)
class Plot:
    """One story shape; ``text`` and the values of ``cases`` are templates (see template.py)."""

    key: str
    themes: tuple[str, ...]
    """What a user may ask for: "a story about <theme>"."""
    morals: tuple[str, ...]
    """Clauses that follow "that": the lesson of the story."""
    summary: str
    ask: tuple[tuple[str, str], ...]
    """Questions about the story, with their answers."""
    text: str
    cases: tuple[tuple[Case, ...], ...] = field(default=())
    """From each group one case is chosen, and its values become slots."""
    uses_object: bool = True
    things: tuple[str, ...] = ()
    """What the object may be, where not every object will do."""
    short: bool = False
    tiny: bool = False
