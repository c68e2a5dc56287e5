"""Blocks that leave the KV cache and come back, and what is noticed when they were damaged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockStore
from quire.ops.metadata import KVCache
from quire.runner.kv_files import PREFIX, BlockFiles
from quire.runner.kv_host import HostKV

BLOCKS, SLOTS = 8, 4


def caches(dtype: torch.dtype) -> list[KVCache]:
    """Three layers of random blocks."""
    shape = (BLOCKS, 2, 8, 12)
    values = [torch.randint(-100, 100, shape, dtype=torch.int8).to(dtype) for _ in range(6)]
    layers = [KVCache(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    if dtype == torch.int8:
        scales = [torch.rand(shape[:3]).bfloat16() for _ in range(6)]
        layers = [KVCache(c.k, c.v, *scales[2 * i : 2 * i + 2]) for i, c in enumerate(layers)]
    return layers


def contents(layers: list[KVCache], block: int) -> list[torch.Tensor]:
    return [t[block].clone() for cache in layers for t in cache.tensors]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def store(block: int, slot: int, key: bytes) -> BlockCopies:
    return BlockCopies([], [], [BlockStore(block, slot, key)], [])


def load(slot: int, block: int, key: bytes) -> BlockCopies:
    return BlockCopies([], [], [], [BlockLoad(slot, block, key)])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    files = BlockFiles(tmp_path, 1000)
    yield files
    files.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_a_block_comes_back_bit_by_bit(dtype: torch.dtype) -> None:
    layers = caches(dtype)
    before = [contents(layers, block) for block in range(BLOCKS)]
    host = HostKV(layers, SLOTS)
    stores = [BlockStore(6, 2, b"a"), BlockStore(1, 0, b"b")]
    # Within a step stores come first: block 6 may be given away and loaded at once.
    loads = [BlockLoad(0, 6, b"b"), BlockLoad(2, 3, b"a")]
    assert host.copy(BlockCopies([], [], stores, loads)) == []
    expected = [*before[:3], before[6], *before[4:6], before[1], before[7]]
    assert all(same(contents(layers, block), expected[block]) for block in range(BLOCKS))


def test_views_of_larger_tensors_are_copied() -> None:
    both = torch.randn(BLOCKS, 2, 2, 8, 4)  # keys and values of a block side by side
    layers = [KVCache(both[:, 0], both[:, 1])]
    before = both[5].clone()
    host = HostKV(layers, SLOTS)
    host.copy(store(5, 1, b"a"))
    host.copy(load(1, 2, b"a"))
    assert torch.equal(both[2], before)


@pytest.mark.parametrize("word", [0, 100, -1])
def test_a_changed_bit_in_memory_fails_the_load(word: int) -> None:
    layers = caches(torch.bfloat16)
    host = HostKV(layers, SLOTS)
    host.copy(store(0, 1, b"a"))
    before = [contents(layers, block) for block in range(4)]
    host.slots[1, word] ^= 1 << 40
    assert host.copy(load(1, 4, b"a")) == [4]
    assert all(same(contents(layers, block), before[block]) for block in range(4))
    host.slots[1, word] ^= 1 << 40
    assert host.copy(load(1, 4, b"a")) == []


def test_words_that_changed_places_fail_the_load() -> None:
    layers = [KVCache(torch.randn(2, 2, 8, 64), torch.randn(2, 2, 8, 64))]
    host = HostKV(layers, 1)
    host.copy(store(0, 0, b"a"))
    host.slots[0] = host.slots[0].reshape(2, -1)[::-1].reshape(-1).copy()
    assert host.copy(load(0, 1, b"a")) == [1]


def test_a_slot_that_holds_another_block_fails_the_load() -> None:
    host = HostKV(caches(torch.float32), SLOTS)
    assert host.copy(load(1, 4, b"a")) == [4]
    host.copy(store(0, 1, b"b"))
    assert host.copy(load(1, 4, b"a")) == [4]
    assert host.copy(load(ON_DISK, 4, b"a")) == [4]


@pytest.mark.parametrize("flush", [True, False])
def test_a_spilled_block_comes_back_from_its_file(files: BlockFiles, flush: bool) -> None:
    layers = caches(torch.int8)
    host = HostKV(layers, 1, files)
    before = contents(layers, 0)
    host.copy(store(0, 0, b"a"))
    host.copy(BlockCopies([], [(0, b"a")], [BlockStore(1, 0, b"b")], []))
    if flush:
        files.flush()
        assert files.path(b"a").exists()
    assert host.copy(load(ON_DISK, 5, b"a")) == []
    assert same(contents(layers, 5), before)
    host.copy(BlockCopies([b"a"], [], [], []))
    files.flush()
    assert not files.path(b"a").exists()
    assert host.copy(load(ON_DISK, 5, b"a")) == [5]


@pytest.mark.parametrize("damage", ["bit", "head", "short", "empty", "long", "gone", "folder"])
def test_a_damaged_file_fails_the_load(files: BlockFiles, damage: str) -> None:
    host = HostKV(caches(torch.float32), 1, files)
    host.copy(store(0, 0, b"a"))
    host.copy(BlockCopies([], [(0, b"a")], [], []))
    files.flush()
    path = files.path(b"a")
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        changed = {
            "bit": data[:-3] + bytes([data[-3] ^ 4]) + data[-2:],
            "head": bytes([data[0] ^ 1]) + data[1:],
            "short": data[:-1],
            "empty": b"",
            "long": b"\0" + data,
        }
        path.write_bytes(changed[damage])
    assert host.copy(load(ON_DISK, 3, b"a")) == [3]


def test_a_disk_that_refuses_is_noticed_at_the_load(
    files: BlockFiles, caplog: pytest.LogCaptureFixture
) -> None:
    host = HostKV(caches(torch.float32), 1, files)
    host.copy(store(0, 0, b"a"))
    for key in (b"a", b"b"):
        files.path(key).mkdir()  # in the file's way
        (files.path(key) / "x").touch()
        host.copy(BlockCopies([], [(0, key)], [], []))
    files.flush()
    assert caplog.text.count("cannot be written to") == 1
    assert host.copy(load(ON_DISK, 3, b"a")) == [3]


def test_files_written_and_removed_in_turn_leave_nothing(files: BlockFiles) -> None:
    layers = caches(torch.float32)
    host = HostKV(layers, 1, files)
    host.copy(store(0, 0, b"a"))
    for _ in range(200):
        host.copy(BlockCopies([], [(0, b"a")], [], []))
        host.copy(BlockCopies([b"a"], [], [], []))
    files.flush()
    assert not files.path(b"a").exists()
    host.copy(BlockCopies([], [(0, b"a")], [], []))
    files.flush()
    assert host.copy(load(ON_DISK, 3, b"a")) == []


def test_folders_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    living = BlockFiles(tmp_path, 8)
    dead = tmp_path / f"{PREFIX}dead"
    dead.mkdir()
    (dead / "in-use").touch()
    (dead / "ab").write_bytes(b"x" * 100)
    (tmp_path / "other").mkdir()
    second = BlockFiles(tmp_path, 8)
    assert not dead.exists()
    assert living.folder.exists()
    assert second.folder.exists()
    living.close()
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_slots_that_nobody_uses_cost_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    layers = caches(torch.float32)
    before, start = resident(), time.monotonic()
    host = HostKV(layers, 2**33 // (3 * 2 * 2 * 8 * 12 * 4))
    assert host.slots.nbytes > 2**32
    # What is noted of each slot is small beside it.
    assert resident() - before < host.slots.nbytes // 50, time.monotonic() - start
    host.close()
