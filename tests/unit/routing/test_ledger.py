"""Who has borrowed which blocks, and what their owners hear of it."""

from __future__ import annotations

from array import array

from quire.core.kv_sharing import SharedKV
from quire.core.messages import BlocksLent, BlocksReturned, CoreInput
from quire.core.options import NOT_LENT, LentBlocks
from quire.routing.ledger import Ledger

Sent = list[tuple[int, CoreInput]]


def make() -> tuple[Ledger, Sent]:
    sent: Sent = []
    return Ledger(SharedKV("", 10, 0, 4), lambda *each: sent.append(each)), sent


def lent(blocks: list[int]) -> LentBlocks:
    return LentBlocks(b"", array("i", [NOT_LENT, *blocks]).tobytes())


def test_loans_end_once() -> None:
    ledger, sent = make()
    ledger.lend(2, lent([1, 2, 13]))
    ledger.lend(3, lent([1]))
    assert (len(ledger), ledger.num_lent) == (4, 4)
    ledger.end(2, [1, 13])
    assert sent == [(0, BlocksReturned([1])), (1, BlocksReturned([13]))]
    ledger.lose(2)
    assert sent[2:] == [(0, BlocksReturned([2]))]
    ledger.lose(2)
    assert len(sent) == 3
    assert len(ledger) == 1
    ledger.end(3, [])
    assert len(sent) == 3


def test_a_new_owner_hears_of_its_own_loans() -> None:
    ledger, sent = make()
    ledger.lend(2, lent([1, 13]))
    ledger.lend(3, lent([1, 2]))
    ledger.restore(0)
    ledger.restore(1)
    ledger.restore(2)
    assert sent == [(0, BlocksLent([1, 1, 2])), (1, BlocksLent([13]))]
    ledger.clear()
    ledger.restore(0)
    assert (len(sent), len(ledger)) == (2, 0)
