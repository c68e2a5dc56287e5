"""Blocks that leave the KV cache and come back, and what is noticed when they were damaged."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockSave, BlockStore
from quire.kv.lower_tiers import BlockFolder
from quire.ops.metadata import KVCache
from quire.runner import kv_files
from quire.runner.kv_files import BlockFiles, evict
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


def copy(host: HostKV, copies: BlockCopies) -> list[int]:
    """Do copies, and all loads; return the blocks whose load failed."""
    report = host.copy(copies)
    failed = report.failed
    while report.pending:
        report = host.copy(None, wait=True)
        failed += report.failed
    return failed


def store(block: int, slot: int, key: bytes) -> BlockCopies:
    return BlockCopies([], [], [BlockStore(block, slot, key)], [])


def load(slot: int, block: int, key: bytes) -> BlockCopies:
    return BlockCopies([], [], [], [BlockLoad(slot, block, key)])


def save(block: int, key: bytes) -> BlockCopies:
    return BlockCopies([], [BlockSave(block, key)], [], [])


DIGEST = b"0123456789abcdef"


def open_files(directory: Path, digest: bytes = DIGEST, limit: int = 2**20) -> BlockFiles:
    block = sum(t[0].numpy().nbytes for c in caches(torch.float32) for t in c.tensors)
    return BlockFiles(BlockFolder(directory, digest), block, limit)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    files = open_files(tmp_path)
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
    assert copy(host, BlockCopies([], [], stores, loads)) == []
    expected = [*before[:3], before[6], *before[4:6], before[1], before[7]]
    assert all(same(contents(layers, block), expected[block]) for block in range(BLOCKS))


def test_views_of_larger_tensors_are_copied() -> None:
    both = torch.randn(BLOCKS, 2, 2, 8, 4)  # keys and values of a block side by side
    layers = [KVCache(both[:, 0], both[:, 1])]
    before = both[5].clone()
    host = HostKV(layers, SLOTS)
    copy(host, store(5, 1, b"a"))
    copy(host, load(1, 2, b"a"))
    assert torch.equal(both[2], before)


@pytest.mark.parametrize("word", [0, 100, -1])
def test_a_changed_bit_in_memory_fails_the_load(word: int) -> None:
    layers = caches(torch.bfloat16)
    host = HostKV(layers, SLOTS)
    copy(host, store(0, 1, b"a"))
    before = [contents(layers, block) for block in range(4)]
    host.slots[1, word] ^= 1 << 40
    assert copy(host, load(1, 4, b"a")) == [4]
    assert all(same(contents(layers, block), before[block]) for block in range(4))
    host.slots[1, word] ^= 1 << 40
    assert copy(host, load(1, 4, b"a")) == []


def test_words_that_changed_places_fail_the_load() -> None:
    layers = [KVCache(torch.randn(2, 2, 8, 64), torch.randn(2, 2, 8, 64))]
    host = HostKV(layers, 1)
    copy(host, store(0, 0, b"a"))
    host.slots[0] = host.slots[0].reshape(2, -1)[::-1].reshape(-1).copy()
    assert copy(host, load(0, 1, b"a")) == [1]


def test_a_slot_that_holds_another_block_fails_the_load() -> None:
    host = HostKV(caches(torch.float32), SLOTS)
    assert copy(host, load(1, 4, b"a")) == [4]
    copy(host, store(0, 1, b"b"))
    assert copy(host, load(1, 4, b"a")) == [4]
    assert copy(host, load(ON_DISK, 4, b"a")) == [4]


@pytest.mark.parametrize("flush", [True, False])
def test_a_saved_block_comes_back_from_its_file(files: BlockFiles, flush: bool) -> None:
    layers = caches(torch.float32)
    host = HostKV(layers, 0, files)
    before = contents(layers, 0)
    copy(host, save(0, b"a"))
    layers[0].k[0] += 1  # the block has a new use
    if flush:
        files.flush()
        assert files.folder.find(b"a")
    assert copy(host, load(ON_DISK, 5, b"a")) == []
    assert same(contents(layers, 5), before)
    copy(host, BlockCopies([b"a"], [], [], []))
    files.flush()
    assert not Path(files.folder.path(b"a")).exists()
    assert copy(host, load(ON_DISK, 5, b"a")) == [5]


def test_a_block_outlives_its_engine(tmp_path: Path) -> None:
    layers = caches(torch.float32)
    first = HostKV(layers, 0, open_files(tmp_path))
    copy(first, save(3, b"a"))
    before = contents(layers, 3)
    first.close()
    second = HostKV(layers, 0, open_files(tmp_path))
    assert copy(second, load(ON_DISK, 5, b"a")) == []
    assert same(contents(layers, 5), before)
    second.close()


def test_a_reader_needs_no_folder_that_it_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **flags: object) -> None:
        raise PermissionError

    for name in ("mkdir", "touch"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(PermissionError):
        open_files(tmp_path)
    reader = BlockFiles(BlockFolder(tmp_path, DIGEST), 64, 2**20, read_only=True)
    assert not reader.folder.find(b"a")
    reader.close()


def test_another_models_file_fails_the_load(tmp_path: Path, files: BlockFiles) -> None:
    layers = caches(torch.float32)
    copy(HostKV(layers, 0, files), save(0, b"a"))
    files.flush()
    other = open_files(tmp_path, bytes(16))
    assert not other.folder.find(b"a")
    Path(files.folder.path(b"a")).rename(other.folder.path(b"a"))
    assert copy(HostKV(layers, 0, other), load(ON_DISK, 3, b"a")) == [3]
    other.close()


@pytest.mark.parametrize(
    "damage", ["bit", "head", "name", "short", "empty", "long", "gone", "pipe"]
)
def test_a_damaged_file_fails_the_load_and_is_written_again(files: BlockFiles, damage: str) -> None:
    host = HostKV(caches(torch.float32), 1, files)
    copy(host, save(0, b"a"))
    files.flush()
    path = Path(files.folder.path(b"a"))
    data = path.read_bytes()
    if damage in ("gone", "pipe"):
        path.unlink()
        if damage == "pipe":
            os.mkfifo(path)
    elif damage == "name":
        copy(host, save(1, b"b"))
        files.flush()
        Path(files.folder.path(b"b")).replace(path)
    else:
        changed = {
            "bit": data[:-3] + bytes([data[-3] ^ 4]) + data[-2:],
            "head": data[:16] + bytes([data[16] ^ 1]) + data[17:],
            "short": data[:-1],
            "empty": b"",
            "long": data + b"\0",
        }
        path.write_bytes(changed[damage])
    assert copy(host, load(ON_DISK, 3, b"a")) == [3]
    assert not path.exists()
    copy(host, save(0, b"a"))
    files.flush()
    assert path.read_bytes() == data


def test_a_disk_that_refuses_is_noticed_at_the_load(
    files: BlockFiles, caplog: pytest.LogCaptureFixture
) -> None:
    host = HostKV(caches(torch.float32), 1, files)
    for key in (b"a", b"b"):
        Path(files.folder.path(key)).mkdir()  # in the file's way
        copy(host, save(0, key))
    files.flush()
    assert caplog.text.count("cannot be written to") == 1
    assert copy(host, load(ON_DISK, 3, b"a")) == [3]
    assert host.copy(None).unsaved == 2


def test_a_disk_that_is_too_slow_gets_fewer_blocks(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_files, "QUEUE_BYTES", 0)
    host = HostKV(caches(torch.float32), 0, files)
    with files._lock:  # the writer waits for it
        copy(host, save(0, b"a"))
        copy(host, save(1, b"b"))
        copy(host, save(2, b"c"))
    files.flush()
    assert [files.folder.find(key) for key in (b"a", b"b", b"c")] == [True, False, False]
    assert files.num_skipped == 2


def test_files_written_and_removed_in_turn_leave_nothing(files: BlockFiles) -> None:
    host = HostKV(caches(torch.float32), 1, files)
    for _ in range(100):
        copy(host, save(0, b"a"))
        copy(host, BlockCopies([b"a"], [], [], []))
    files.flush()
    assert list(files.folder.folder.iterdir()) == []
    copy(host, save(0, b"a"))
    files.flush()
    assert copy(host, load(ON_DISK, 3, b"a")) == []


def test_the_least_recently_used_files_of_all_models_go_first(tmp_path: Path) -> None:
    folders = [BlockFolder(tmp_path, bytes([n] * 16)) for n in range(2)]
    for number in range(10):
        folder = folders[number % 2]
        folder.folder.mkdir(exist_ok=True)
        path = Path(folder.path(bytes([number])))
        path.write_bytes(b"x" * 100)
        os.utime(path, (number + 1, number + 1))
    folders[0].use([bytes([0])])  # the oldest is used
    unfinished = folders[0].folder / ".00.7.8"
    unfinished.touch()
    os.utime(unfinished, (0, 0))
    (tmp_path / "other").write_bytes(b"x" * 10_000)
    (folders[0].folder / "notes").write_bytes(b"x" * 10_000)  # no block
    evict(tmp_path, 1200)
    assert not unfinished.exists()
    assert sum(folders[n % 2].find(bytes([n])) for n in range(10)) == 10
    evict(tmp_path, 1000)
    fresh = [BlockFolder(tmp_path, bytes([n] * 16)) for n in range(2)]
    assert [n for n in range(10) if fresh[n % 2].find(bytes([n]))] == [0, *range(3, 10)]
    assert (tmp_path / "other").exists()
    assert (folders[0].folder / "notes").exists()


def test_files_that_cannot_be_removed_do_not_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another user: the younger own ones go, so that the limit holds."""
    folder = BlockFolder(tmp_path, DIGEST)
    folder.folder.mkdir()
    paths = [Path(folder.path(bytes([number]))) for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(b"x" * 100)
        os.utime(path, (number + 1, number + 1))
    unlink = os.unlink

    def refusing(path: str) -> None:
        if Path(path) in paths[:3]:
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    evict(tmp_path, 1000)
    assert [path.exists() for path in paths] == [True] * 3 + [False] * 2 + [True] * 5


@pytest.mark.parametrize("mode", [0o444, 0o666])
def test_a_lock_of_another_user_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    lock, opened = tmp_path / ".quire-kv-lock", os.open
    lock.touch()

    def refusing(path: str, how: int, *mode_of_new: int) -> int:
        if how & os.O_RDWR and mode == 0o444:
            raise PermissionError
        return opened(path, how, *mode_of_new)

    monkeypatch.setattr(os, "open", refusing)
    folder = BlockFolder(tmp_path, DIGEST)
    folder.folder.mkdir()
    Path(folder.path(b"a")).write_bytes(b"x" * 100)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        evict(tmp_path, 10)
        assert folder.find(b"a")
    evict(tmp_path, 10)
    assert not Path(folder.path(b"a")).exists()


def test_no_link_is_written_to(tmp_path: Path, files: BlockFiles) -> None:
    """Who can write to the folder cannot have the engine write elsewhere."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"x")
    (tmp_path / ".quire-kv-lock").symlink_to(precious)
    Path(f"{files.folder.folder}/.{b'a'.hex()}{files._suffix}").symlink_to(precious)
    host = HostKV(caches(torch.float32), 0, files)
    copy(host, save(0, b"a"))
    files.flush()
    evict(tmp_path, 1)
    assert precious.read_bytes() == b"x"
    copy(host, save(0, b"a"))  # the link is gone
    files.flush()
    assert copy(host, load(ON_DISK, 3, b"a")) == []


def test_a_folder_that_was_removed_is_made_again(files: BlockFiles) -> None:
    shutil.rmtree(files.folder.folder)
    host = HostKV(caches(torch.float32), 0, files)
    copy(host, save(0, b"a"))
    files.flush()
    assert copy(host, load(ON_DISK, 3, b"a")) == []
    assert files.num_failed == 0


def test_a_slow_read_blocks_no_step_and_can_be_cancelled(
    files: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = caches(torch.float32)
    host = HostKV(layers, 0, files)
    before = [contents(layers, block) for block in range(BLOCKS)]
    host.copy(BlockCopies([], [BlockSave(0, b"a"), BlockSave(1, b"b")], [], []))
    files.flush()
    slow, read = threading.Event(), BlockFiles.read

    def wait(self: BlockFiles, key: bytes, row: NDArray[np.int64]) -> int:
        assert slow.wait(60)
        return read(self, key, row)

    monkeypatch.setattr(BlockFiles, "read", wait)
    loads = [BlockLoad(ON_DISK, 4, b"a"), BlockLoad(ON_DISK, 5, b"b")]
    assert host.copy(BlockCopies([], [], [], loads)).pending == [4, 5]
    assert host.copy(None).pending == [4, 5]
    assert host.is_reading
    # Block 4 has a new use, block 5 another load.
    new = BlockCopies([], [], [], [BlockLoad(ON_DISK, 5, b"a")], cancelled=[4, 5])
    assert host.copy(new).pending == [5]
    slow.set()
    assert copy(host, BlockCopies([], [], [], [])) == []
    assert not host.is_reading
    assert same(contents(layers, 4), before[4])
    assert same(contents(layers, 5), before[0])
    host.close()


def test_a_full_folder_stays_within_its_limit(tmp_path: Path) -> None:
    files = open_files(tmp_path, limit=40_000)
    host = HostKV(caches(torch.float32), 0, files)
    for number in range(20):
        copy(host, save(0, bytes([number])))
    files.close()
    total = sum(path.stat().st_size for path in files.folder.folder.iterdir())
    assert 20_000 < total <= 40_000


def test_a_reset_hides_files_until_they_are_written_again(files: BlockFiles) -> None:
    host = HostKV(caches(torch.float32), 0, files)
    copy(host, save(0, b"a"))
    files.flush()
    assert files.folder.find(b"a")
    files.folder.forget_all()
    assert not files.folder.find(b"a")
    files.folder.use([b"a"])
    assert not files.folder.find(b"a")
    os.utime(files.folder.path(b"a"), (time.time() + 9, time.time() + 9))
    assert files.folder.find(b"a")


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
