"""Causes in the GPU itself: heat, its power limit, other processes."""

from __future__ import annotations

from quire.explain.cards import Card
from quire.explain.causes.case import Case, Kind, Suspect, change, suspect

LOWERED = 0.05
"""Share of the window in which a clock must be lowered: single moments are usual."""


def hot_card(case: Case) -> Suspect | None:
    """Heat, or a brake of the board, lowers a GPU's clock."""
    card = max(_cards(case), key=lambda card: card.hot, default=None)
    if card is None or card.hot < LOWERED * case.window.seconds:
        return None
    lost = _lost(case, card, card.hot)
    return suspect(
        "hot_card",
        f"Heat lowers the clock of {card.name} to {card.clock:.0%} of its highest, for "
        f"{_share(case, card.hot):.0%} of the time.",
        lost,
        [change("better cooling", "or fewer watts: nvidia-smi --power-limit", lost)],
        hot_seconds=card.hot,
        clock=card.clock,
    )


def power_limit(case: Case) -> Suspect | None:
    """A GPU's power limit lowers its clock, as products of large batches do on many cards."""
    card = max(_cards(case), key=lambda card: card.capped, default=None)
    if card is None or card.capped < LOWERED * case.window.seconds:
        return None
    lost = _lost(case, card, card.capped)
    return suspect(
        "power_limit",
        f"The power limit lowers the clock of {card.name} to {card.clock:.0%} of its highest, for "
        f"{_share(case, card.capped):.0%} of the time.",
        lost,
        [change("nvidia-smi --power-limit WATTS", "a higher one, if the card allows it", lost)],
        Kind.LIMIT,
        capped_seconds=card.capped,
        clock=card.clock,
    )


def shared_card(case: Case) -> Suspect | None:
    """Other processes compute on the engine's GPU."""
    card = max(_cards(case), key=lambda card: card.others, default=None)
    if card is None:
        return None
    lost = case.model * card.others
    return suspect(
        "shared_card",
        f"Other processes compute on {card.name} for {card.others:.0%} of the time (pid "
        f"{', '.join(map(str, card.neighbours))}).",
        lost,
        [change("a card of its own", "CUDA_VISIBLE_DEVICES chooses it", lost)],
        Kind.NEIGHBOUR,
        others_share=card.others,
    )


def _cards(case: Case) -> list[Card]:
    around = case.evidence.surroundings
    return [] if around is None or not case.on_device else around.cards


def _share(case: Case, seconds: float) -> float:
    return min(1.0, seconds / case.window.seconds)


def _lost(case: Case, card: Card, seconds: float) -> float:
    """Return at most the share of the window that a lower clock took."""
    return case.model * _share(case, seconds) * max(0.0, 1.0 - card.clock)
