"""What NVML says of the GPUs on which the engine's processes compute."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from quire.profile.nvml import Gpu, gpus

MOST_SECONDS = 10.0
"""Time after which NVML hangs."""


class Card(msgspec.Struct, frozen=True):
    """One GPU in one window.

    Attributes:
        clock: of its multiprocessors, relative to the highest; 0 if unknown.
        hot, capped: seconds for which heat, or the power limit, lowered the clock.
        others: share of the time in which other processes computed on it.
        neighbours: these processes.
    """

    name: str
    clock: float = 0.0
    hot: float = 0.0
    capped: float = 0.0
    others: float = 0.0
    neighbours: list[int] = []


def read_cards(pids: Collection[int]) -> list[Card]:
    """Return the cards on which these processes compute; `hot` and `capped` since their start.

    A container may hide process numbers. Then a single card is the engine's, without neighbours.
    """
    cards = gpus()
    mine = [card for card in cards if not card.processes().isdisjoint(pids)]
    return [_read(card, pids) for card in mine or (cards if len(cards) == 1 else [])]


async def cards_in_thread(pids: Collection[int]) -> list[Card]:
    """Return `read_cards`; none if NVML does not answer. Its first call may take a second."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(read_cards, pids), MOST_SECONDS)
    except TimeoutError:
        return []


def cards_between(first: list[Card], last: list[Card]) -> list[Card]:
    """Return the cards with the seconds of the time between two readings."""
    if len(first) != len(last):
        return last and [msgspec.structs.replace(card, hot=0.0, capped=0.0) for card in last]
    return [
        msgspec.structs.replace(
            card, hot=max(0.0, card.hot - was.hot), capped=max(0.0, card.capped - was.capped)
        )
        for was, card in zip(first, last, strict=True)
    ]


def _read(card: Gpu, pids: Collection[int]) -> Card:
    reading = card.read()
    highest = card.highest_mhz
    loads = card.loads() if not card.processes().isdisjoint(pids) else {}
    others = {pid: load for pid, load in loads.items() if load and pid not in pids}
    hot, capped = card.slowed_seconds()
    return Card(
        reading.name,
        (reading.frequency_mhz or 0.0) / highest if highest else 0.0,
        hot,
        capped,
        min(1.0, sum(others.values())),
        sorted(others),
    )
