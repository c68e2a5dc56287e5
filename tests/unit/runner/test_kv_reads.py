"""Blocks read ahead of the steps that take them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from quire.core.batch import ON_DISK, BlockLoad
from quire.runner.kv_reads import BlockReader, Row


class Numbers:
    """A source whose block with the key b"7" is full of sevens."""

    def read(self, key: bytes, row: Row) -> int:
        row.fill(int(key))
        return 0

    def expect(self, keys: Iterable[bytes]) -> None: ...

    def remove(self, keys: Iterable[bytes]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def reader() -> Iterable[BlockReader]:
    reader = BlockReader({ON_DISK: Numbers()}, num_words=4)
    yield reader
    reader.close()


def begin(reader: BlockReader, *blocks: int) -> None:
    reader.begin([BlockLoad(ON_DISK, block, b"%d" % block) for block in blocks])


def test_rows_hold_until_the_next_call_and_are_used_again(reader: BlockReader) -> None:
    begin(reader, 1, 2)
    first = {read.load.block: read.row for read in reader.take(60.0)}
    begin(reader, 3)
    [third] = reader.take(60.0)
    assert [int(row.max()) for row in first.values()] == [1, 2]
    assert third.row.tolist() == [3] * 4
    assert not any(np.shares_memory(third.row, row) for row in first.values())


def test_rows_are_used_again_while_blocks_are_read(reader: BlockReader) -> None:
    """And given back to the system when none is."""
    reader._most_done = 1
    begin(reader, *range(6))
    rows = {reader.take(60.0)[0].row.ctypes.data for _ in range(6)}
    assert len(rows) < 6
    assert not reader._free
