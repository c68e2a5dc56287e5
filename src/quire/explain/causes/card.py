"""Causes in the GPU itself: heat, its power limit, other processes."""

from __future__ import annotations

from quire.explain.cards import Card
from quire.explain.causes.case import Case, Kind, Suspect, advice, suspect

LOWERED = 0.05
"""Share of the window in which a clock must be lowered: single moments are usual."""


def hot_card(case: Case) -> Suspect | None:
    """Heat, or a brake of the board, lowers a GPU's clock."""
    fix = "better cooling", "or fewer watts: nvidia-smi --power-limit"
    return _slowed(case, "hot", "Heat", fix, Kind.WASTE)


def power_limit(case: Case) -> Suspect | None:
    """A GPU's power limit lowers its clock, as products of large batches do on many cards."""
    fix = "nvidia-smi --power-limit WATTS", "a higher one, if the card allows it"
    return _slowed(case, "capped", "The power limit", fix, Kind.LIMIT)


def _slowed(
    case: Case, counter: str, what: str, fix: tuple[str, str], kind: Kind
) -> Suspect | None:
    """Return that something lowers a clock; `counter` is the field of `Card` with its seconds."""
    card = max(_cards(case), key=lambda card: getattr(card, counter), default=None)
    seconds = 0.0 if card is None else getattr(card, counter)
    if card is None or seconds < LOWERED * case.window.seconds:
        return None
    share = min(1.0, seconds / case.window.seconds)
    lost = case.model * share * max(0.0, 1.0 - card.clock)  # at most
    return suspect(
        f"{what} lowers the clock of {card.name} to {card.clock:.0%} of its highest, for "
        f"{share:.0%} of the time.",
        lost,
        advice(*fix, lost),
        kind=kind,
    )


def shared_card(case: Case) -> Suspect | None:
    """Other processes compute on the engine's GPU."""
    card = max(_cards(case), key=lambda card: card.others, default=None)
    if card is None:
        return None
    lost = case.model * card.others
    return suspect(
        f"Other processes compute on {card.name} for {card.others:.0%} of the time (pid "
        f"{', '.join(map(str, card.neighbours))}).",
        lost,
        advice("a card of its own", "CUDA_VISIBLE_DEVICES chooses it", lost),
        kind=Kind.NEIGHBOUR,
    )


def _cards(case: Case) -> list[Card]:
    return case.around.cards if case.on_device else []
