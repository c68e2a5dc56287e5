"""What an engine knows of blocks in files and at other engines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.core.batch import AT_PEER, ON_DISK
from quire.kv import lower_tiers
from quire.kv.lower_tiers import TRUSTED, USED_EVERY, BlockFolder, PromisedBlocks

A, B, C = b"a", b"b", b"c"


class Clock:
    """Stands for the module `time`."""

    seconds = 0.0
    ns = 1

    def monotonic(self) -> float:
        return self.seconds

    def time_ns(self) -> int:
        return self.ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lower_tiers, "time", clock)
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> BlockFolder:
    folder = BlockFolder(tmp_path, bytes([1, 2, 3]))
    folder.folder.mkdir()
    return folder


def write(folder: BlockFolder, key: bytes, changed_ns: int = 9) -> None:
    Path(folder.path(key)).touch()
    os.utime(folder.path(key), ns=(1, changed_ns))


def test_a_block_that_was_found_counts_as_stored_for_a_moment(
    clock: Clock, folder: BlockFolder
) -> None:
    """So a step need not look at each file again; a failed load ends it."""
    assert not folder.find(A)
    write(folder, A)
    assert folder.find(A)
    os.remove(folder.path(A))
    clock.seconds = TRUSTED / 2
    assert folder.find(A)
    clock.seconds = TRUSTED
    assert not folder.find(A)
    write(folder, A)
    assert folder.find(A)
    os.remove(folder.path(A))
    folder.lose(B)
    assert folder.find(A)
    folder.lose(A)
    assert not folder.find(A)


def test_a_reset_hides_files_unless_they_are_written_after_it(
    clock: Clock, folder: BlockFolder
) -> None:
    clock.ns = 50
    for key, changed_ns in ((A, 50), (B, 51)):
        write(folder, key, changed_ns)
        assert folder.find(key)
    folder.forget_all()
    assert [folder.find(key) for key in (A, B)] == [False, True]


def test_a_file_in_use_is_marked_at_most_each_minute(clock: Clock, folder: BlockFolder) -> None:
    def marked(*keys: bytes) -> list[int]:
        clock.ns += 1000
        folder.use(keys)
        assert os.stat(folder.path(A)).st_mtime_ns == 9
        return [os.stat(folder.path(key)).st_atime_ns for key in (A, B)]

    for key in (A, B):
        write(folder, key)
    assert marked(A) == [1001, 1]
    assert marked(A, B, C) == [1001, 2001]  # C has no file
    clock.seconds = USED_EVERY
    assert marked(A) == [3001, 2001]


def test_what_is_remembered_is_bounded(
    clock: Clock, folder: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_tiers, "MOST_REMEMBERED", 2)
    for key in (A, B, C):
        write(folder, key)
        folder.find(key)
        if key == B:
            assert len(folder._seen.until) == 2
    assert folder._seen.until.keys() == {C}
    promised = PromisedBlocks()
    promised.promise([A, B, A])
    assert promised.find(B)
    promised.promise([C])  # B is the oldest promise
    assert [promised.find(key) for key in (A, B, C)] == [True, False, True]


def test_states_have_places_of_their_own(folder: BlockFolder) -> None:
    states = folder.of_states
    assert states.directory == folder.directory
    assert states.folder.name == "quire-kv-fefdfc"
    assert states.of_states.folder == folder.folder
    promised = PromisedBlocks()
    promised.of_states.promise([A])
    assert promised.of_states.find(A)
    assert not promised.find(A)
    assert (folder.place, promised.place) == (ON_DISK, AT_PEER)
