"""Blocks that two pools of one memory lend each other."""

from __future__ import annotations

from array import array

import pytest

from quire.core.config import CacheConfig
from quire.core.options import NOT_LENT, KVTransfer, LentBlocks, RequestInputs, RequestOptions
from quire.core.request import Request
from quire.engine.handoff import HandOff
from quire.kv.block_pool import BlockPool
from quire.kv.loans import Loans
from quire.kv.manager import KVCacheManager
from quire.kv.prefix import NO_BLOCK
from tests.unit.kv.test_manager import BLOCK, admit, request

A, B, C = b"a", b"b", b"c"


def owner(*hashes: bytes) -> tuple[BlockPool, Loans]:
    """Return a pool of four blocks, whose first ones are idle with these hashes."""
    pool = BlockPool(4)
    blocks = pool.allocate(len(hashes))
    pool.remember(blocks, hashes)
    pool.release(blocks)
    return pool, Loans(pool)


def borrower() -> tuple[BlockPool, Loans]:
    pool = BlockPool(2, first=4)
    return pool, Loans(pool)


def of(*pairs: tuple[bytes, int]) -> tuple[LentBlocks, list[bytes]]:
    """Return lent blocks, and the hashes of the borrower's request."""
    hashes = [block_hash for block_hash, _ in pairs]
    return LentBlocks(hashes[-1], array("i", [b for _, b in pairs]).tobytes()), [*hashes, b"more"]


def lives(*names: str) -> object:
    return names.__contains__


def test_a_lent_block_is_not_allocated_until_each_loan_has_ended() -> None:
    pool, loans = owner(A, B)
    assert loans.lend([C, A, B]) == of((C, NOT_LENT), (A, 0), (B, 1))[0]  # C has left the window
    assert loans.lend([A]) == of((A, 0))[0]
    assert loans.lend([C]) is loans.lend([]) is None
    assert (loans.num_lent, pool.num_free) == (2, 2)
    pool.check_integrity({}, loans.counts())
    assert pool.allocate(2) == [2, 3]
    loans.take_back([0, 1])
    assert (loans.num_lent, pool.num_free) == (1, 1)
    assert (pool.find(A), pool.find(B)) == (0, 1)  # cached as before
    assert pool.allocate(1) == [1]
    loans.take_back([0])
    assert (loans.num_lent, pool.allocate(1)) == (0, [0])


def test_who_borrows_when_more_than_half_is_lent_copies() -> None:
    _, loans = owner(A, B, C)
    lent = [loans.lend(hashes) for hashes in ([A, B], [B], [C], [A])]
    assert [each.copied for each in lent if each] == [False, False, True, True]
    loans.take_back([2])
    again = loans.lend([A])
    assert not again.copied


def test_the_last_blocks_of_a_prompt_are_evicted_first() -> None:
    pool, loans = owner(A, B)
    lent = loans.lend([A, B])
    loans.take_back(lent.blocks)
    assert pool.allocate(4) == [2, 3, 1, 0]


def test_a_new_core_keeps_what_its_predecessor_lent() -> None:
    pool, loans = owner()
    loans.restore([1, 3, 1])
    assert (loans.num_lent, pool.num_free) == (2, 2)
    pool.check_integrity({}, loans.counts())
    assert pool.allocate(2) == [0, 2]
    loans.take_back([1, 3])
    assert pool.allocate(1) == [3]
    loans.take_back([1])
    assert pool.allocate(1) == [1]


def test_borrowed_blocks_are_found_while_a_request_reads_them() -> None:
    pool, loans = borrower()
    loans.borrow("r", *of((A, 0), (B, 1)))
    assert pool.find_run([A, B, C]) == [0, 1]
    pool.share([0])  # another request
    pool.check_integrity({"other": [0]}, loans.counts())
    assert pool.num_free == 2
    assert loans.settle(lives("r")) == []
    assert loans.settle(lives()) == [1]
    assert (pool.find(A), pool.find(B)) == (0, None)
    pool.release([0])
    assert loans.settle(lives()) == [0]
    assert pool.find(A) is None
    pool.check_integrity({}, loans.counts())
    assert sorted(pool.allocate(2)) == [4, 5]


def test_blocks_before_a_window_are_not_lent() -> None:
    pool, loans = borrower()
    loans.borrow("r", *of((C, NOT_LENT), (A, 0)))
    assert (pool.find(C), pool.find(A)) == (None, 0)
    assert loans.settle(lives()) == [0]


@pytest.mark.parametrize("hashes", [[A], [A, C], []])
def test_blocks_of_another_prompt_are_not_found_but_returned(hashes: list[bytes]) -> None:
    pool, loans = borrower()
    loans.borrow("r", of((A, 0), (B, 1))[0], hashes)
    assert pool.find_run([A, B]) == []
    assert pool.cached_blocks()[0] == []
    assert sorted(loans.settle(lives())) == [0, 1]


def test_each_loan_of_a_block_is_returned_once() -> None:
    pool, loans = borrower()
    loans.borrow("r", *of((A, 0)))
    loans.borrow("s", *of((A, 0)))
    assert loans.settle(lives("s")) == []
    assert loans.settle(lives()) == [0, 0]
    pool.share([])
    # It is borrowed again before the end of the first loan was reported.
    loans.borrow("r", *of((A, 0)))
    pool.share([0])
    loans.settle(lives())
    pool.release([0])
    loans.borrow("s", *of((A, 0)))
    assert loans.settle(lives("s")) == []
    assert loans.settle(lives()) == [0, 0]


def test_own_and_lent_blocks_with_one_hash() -> None:
    pool, loans = borrower()
    [own] = pool.allocate(1)
    pool.remember([own], [A])
    loans.borrow("r", *of((A, 0)))
    assert pool.find(A) == own
    assert loans.settle(lives()) == [0]
    assert pool.find(A) == own
    pool.check_integrity({"q": [own]}, loans.counts())


def test_an_emptied_cache_returns_what_it_borrowed() -> None:
    pool, loans = borrower()
    loans.borrow("r", *of((A, 0)))
    pool.forget_all()
    assert pool.find(A) is None
    assert loans.settle(lives()) == [0]


def test_a_block_without_a_loan_is_noticed() -> None:
    pool, _ = borrower()
    pool.adopt([0], [A])
    with pytest.raises(AssertionError, match="0 has 0 users"):
        pool.check_integrity({})


def borrowing(
    name: str, *, copied: bool, first: int = 10, sampled: tuple[int, ...] = ()
) -> tuple[KVCacheManager, Request]:
    """Return a manager of four blocks, and a request for which two blocks are lent to it."""
    kv = KVCacheManager(CacheConfig(BLOCK, 4, first_block=first))
    r = request(name, [1] * (2 * BLOCK + 1))
    lent = LentBlocks(kv.hasher.extend(r)[1], array("i", [3, 7]).tobytes(), copied)
    r.inputs = RequestInputs(RequestOptions(kv_transfer=KVTransfer(lent=lent, sampled=sampled)))
    r.token_ids.extend(sampled)
    kv.loans.borrow(name, lent, r.block_hashes)
    return kv, r


def test_a_request_copies_what_is_lent_to_it_as_it_begins() -> None:
    """Others find the copies; who reads the lent blocks reads on."""
    kv, r = borrowing("a", copied=True)
    other = request("b", [1] * (2 * BLOCK + 1))
    kv.hasher.extend(other)
    assert admit(kv, other)[:2] == [3, 7]
    assert kv.moves == []
    prefix = kv.find_prefix(r)
    assert prefix == [3, 7]
    assert not kv.can_admit(r, prefix, 1)  # three blocks are free
    assert kv.can_admit(r, prefix, 0)
    table = kv.admit(r, prefix, r.num_tokens)
    assert kv.moves == [(3, table[0]), (7, table[1])]
    assert min(table) >= 10
    assert kv.to_copy(r, [NO_BLOCK, 9, 10]) == [9]
    assert kv.entered.blocks[-2:] == table[:2]
    assert kv.find_prefix(r) == table[:2]
    kv.check_integrity()
    assert kv.loans.settle(lives("a")) == kv.loans.settle(lives()) == []  # b reads them
    kv.free(other)
    assert sorted(kv.loans.settle(lives())) == [3, 7]
    kv.forget(kv.entered)  # the step failed
    assert kv.find_prefix(r) == []
    kv.begin_step()
    assert kv.moves == []
    kv.check_integrity()


@pytest.mark.parametrize("sampled", [(), (4,)])
def test_copied_blocks_are_returned_behind_the_first_token_of_its_own(
    sampled: tuple[int, ...],
) -> None:
    kv, r = borrowing("a", copied=True, sampled=sampled)
    handoff = HandOff(None, [], float, kv.loans)
    assert handoff.settle({}, {"a"}) == handoff.settle({"a": r}, ()) == []
    r.token_ids.append(5)
    assert sorted(handoff.settle({"a": r}, ())) == [3, 7]


def test_a_request_reads_lent_blocks_where_they_are_unless_it_copies() -> None:
    kv, r = borrowing("a", copied=False)
    assert kv.can_admit(r, kv.find_prefix(r), 3)
    assert kv.admit(r, kv.find_prefix(r), r.num_tokens)[:2] == [3, 7]
    assert kv.moves == []
