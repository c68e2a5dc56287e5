"""The picture of the KV cache against one made block by block."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import msgspec
import numpy as np
import pytest

from quire.core.batch import ModelOutput
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.options import LentBlocks
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kv import snapshot as snapshot_module
from quire.kv.prefix import Entered
from quire.kv.snapshot import kv_snapshot
from quire.kv.snapshot_types import CACHED, FREE, OWNED, SHARED, KVSnapshot, PrefixTree
from quire.scheduler.scheduler import Scheduler

SIZE = 8


def make(
    num_blocks: int, *, window: int | None = None, first_block: int | None = None
) -> Scheduler:
    cache = CacheConfig(SIZE, num_blocks, sliding_window=window, first_block=first_block)
    return Scheduler(SchedulerConfig(1000, 8, 200), cache)


def run(s: Scheduler, name: str, prompt: list[int], max_tokens: int) -> Request:
    """A request that has been added and has had a step."""
    params = SamplingParams(max_tokens=max_tokens)
    added = Request(name, prompt, params, arrival_time=0.0, max_model_len=1000)
    s.add(added)
    step(s)
    return added


def step(s: Scheduler) -> None:
    batch = s.schedule(0.0)
    ends = (batch.num_computed_tokens + batch.num_scheduled_tokens).tolist()
    rows = zip(batch.request_ids, ends, strict=True)
    tokens = [[7] if end >= s.requests[name].num_tokens else [-1] for name, end in rows]
    s.update(batch, ModelOutput(np.array(tokens, dtype=np.int64).reshape(-1, 1)), 0.0)


def picture(found: KVSnapshot) -> list[tuple[int, str | None]]:
    """Kind and owner of each block."""
    kv_map = found.map
    blocks: list[tuple[int, str | None]] = []
    for kind, owner, count in zip(kv_map.kind, kv_map.owner, kv_map.count, strict=True):
        blocks += [(kind, kv_map.owners[owner] if owner >= 0 else None)] * count
    assert len(blocks) == kv_map.num_blocks
    assert min(kv_map.owner) >= -1
    return blocks


def expected(s: Scheduler) -> list[tuple[int, str | None]]:
    pool = s.kv.pool
    cached = set(pool.cached_blocks()[0])
    blocks: list[tuple[int, str | None]] = []
    for block in range(pool.num_blocks):
        holders = [name for name, table in s.kv.tables.items() if block in table]
        if len(holders) == 1:
            blocks.append((OWNED, holders[0]))
        elif holders:
            blocks.append((SHARED, None))
        else:
            blocks.append((CACHED if block in cached else FREE, None))
    return blocks


def nodes(found: KVSnapshot) -> dict[int, tuple[int | None, int, int]]:
    """Parent, blocks and users by id."""
    tree = found.tree
    assert min(tree.parent, default=-1) >= -1
    columns = zip(tree.id, tree.parent, tree.blocks, tree.users, strict=True)
    return {i: (p if p >= 0 else None, blocks, users) for i, p, blocks, users in columns}


@pytest.mark.parametrize("window", [None, 20])
def test_every_block_is_what_it_is(window: int | None) -> None:
    s = make(60, window=window)
    rng = random.Random(0)
    base = [rng.randrange(99) for _ in range(100)]
    kinds: Counter[int] = Counter()
    for i in range(120):
        prompt = base[: rng.randrange(100)] + [rng.randrange(99) for _ in range(rng.randrange(9))]
        run(s, f"r{i}", prompt or [1], rng.choice([1, 2, 30]))
        found = kv_snapshot(s.kv)
        assert picture(found) == expected(s)
        counts = Counter(kind for kind, _ in picture(found))
        stats = s.stats()
        assert counts[CACHED] == stats.kv_blocks_cached
        assert counts[OWNED] + counts[SHARED] == stats.kv_blocks_used
        assert sum(found.tree.blocks) == len(s.kv.pool.cached_blocks()[0])
        kinds += counts
    assert set(kinds) >= {FREE, CACHED, OWNED}


def test_a_tree() -> None:
    """a: 3 blocks; b: the same 2, and 1 of its own; c: nothing in common."""
    s = make(60)
    common = list(range(2 * SIZE))
    run(s, "a", [*common, *[50] * SIZE, 1], 9)
    run(s, "b", [*common, *[60] * SIZE, 1], 9)
    run(s, "c", [*[70] * 2 * SIZE, 1], 1)
    found = kv_snapshot(s.kv)
    by_table = s.kv.tables
    root, a, b = by_table["a"][0], by_table["a"][2], by_table["b"][2]
    tree = nodes(found)
    assert len(tree) == found.tree.num_nodes == 4
    assert tree[root] == (None, 2, 2)
    assert tree[a] == (root, 1, 1)
    assert tree[b] == (root, 1, 1)
    assert (None, 2, 0) in tree.values()  # c has gone
    step(s)
    s.abort(["a", "b"])
    assert nodes(kv_snapshot(s.kv))[root] == (None, 2, 0)


def test_borrowed_blocks_belong_to_another_map() -> None:
    s = make(4, first_block=10)
    prompt, params = [*range(2 * SIZE), 1], SamplingParams()
    hashes = s.kv.hasher.extend(Request("h", prompt, params, arrival_time=0.0, max_model_len=1000))
    s.kv.loans.borrow("a", LentBlocks(hashes[-1], array("i", [3, 4]).tobytes()), hashes)
    run(s, "a", prompt, 9)
    assert s.kv.tables["a"] == [3, 4, 10]
    assert picture(kv_snapshot(s.kv)) == [(OWNED, "a"), *[(FREE, None)] * 3]


def test_the_first_block_of_all_may_have_two_children() -> None:
    s = make(60)
    run(s, "a", [*range(SIZE), *[50] * SIZE, 1], 9)
    run(s, "b", [*range(SIZE), *[60] * SIZE, 1], 9)
    root, a, b = *s.kv.tables["a"][:2], s.kv.tables["b"][1]
    assert nodes(kv_snapshot(s.kv)) == {root: (None, 1, 2), a: (root, 1, 1), b: (root, 1, 1)}


def test_what_follows_a_block_that_was_given_away_is_an_orphan() -> None:
    s = make(6)
    run(s, "a", [*range(4 * SIZE), 1], 1)
    [a] = nodes(kv_snapshot(s.kv))
    first = kv_snapshot(s.kv).tree
    assert first.blocks == [4]
    s.kv.pool.forget(a)
    run(s, "b", [*[90] * SIZE, 1], 1)
    tree = nodes(kv_snapshot(s.kv))
    assert sorted(blocks for _, blocks, _ in tree.values()) == [1, 3]
    assert {parent for parent, _, _ in tree.values()} == {None}


def test_a_large_picture_is_made_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "MAX_RUNS", 8)
    monkeypatch.setattr(snapshot_module, "MAX_NODES", 3)
    s = make(61)
    for i in range(20):
        run(s, f"r{i}", [i] * 9, 1)
    run(s, "long", list(range(100, 190)), 9)
    s.kv.forget(Entered(list(range(0, 20, 2)), []))  # cached, free, cached, free …
    found = kv_snapshot(s.kv)
    assert found.map.blocks_per_cell == 8
    assert len(found.map.kind) <= 8
    assert sum(found.map.count) == 61
    assert OWNED in found.map.kind
    assert found.tree.num_nodes == 11
    assert found.tree.blocks == [11, 1, 1]


def test_a_cell_is_what_most_of_its_blocks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "MAX_RUNS", 1)
    s = make(10)
    run(s, "a", [1] * 6 * SIZE, 9)
    found = kv_snapshot(s.kv)
    assert found.map.blocks_per_cell == 10
    assert picture(found) == [(OWNED, "a")] * 10


def test_parents_that_are_not_told_of_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    s = make(60)
    top, middle = [1] * 3 * SIZE, [2] * SIZE
    run(s, "a", [*top, *middle, *[3] * 2 * SIZE, 1], 1)
    run(s, "b", [*top, *middle, *[4] * 2 * SIZE, 1], 1)
    run(s, "c", [*top, *[5] * 2 * SIZE, 1], 1)
    whole = nodes(kv_snapshot(s.kv))
    root = next(i for i, (_, blocks, _) in whole.items() if blocks == 3)
    between = next(i for i, (_, blocks, _) in whole.items() if blocks == 1)
    assert [parent for parent, _, _ in whole.values()].count(between) == 2
    monkeypatch.setattr(snapshot_module, "MAX_NODES", 4)
    few = nodes(kv_snapshot(s.kv))
    assert between not in few
    assert [parent for parent, _, _ in few.values()] == [None, root, root, root]


def test_it_travels() -> None:
    s = make(60)
    run(s, "a", [1, 2, 3], 5)
    found = kv_snapshot(s.kv)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
    assert msgspec.convert(sent, KVSnapshot) == found


def test_an_empty_cache_has_no_prefixes() -> None:
    found = kv_snapshot(make(4).kv)
    assert found.tree == PrefixTree(SIZE, 0, [], [], [], [])
    assert picture(found) == [(FREE, None)] * 4
