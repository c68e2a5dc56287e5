"""Memory on huge pages: what of it is resident, and when."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest

from quire.core.dtypes import BFLOAT16
from quire.ops.array import address
from quire.ops.memory import HUGE_PAGE, SharedArrays, back, empty
from quire.ops.plans.arena import ALIGNMENT
from quire.parallel.shared_memory import SharedFile

MAPS = Path("/proc/self/smaps")
LARGE = 32 * HUGE_PAGE


def resident_bytes(begin: int, nbytes: int) -> int:
    """Of the mappings that these addresses lie in."""
    end = begin + nbytes
    total, inside = 0, False
    for line in MAPS.read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, last = (int(bound, 16) for bound in bounds.groups())
            inside = first < end and begin < last
        elif inside and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's /proc")
def test_only_what_is_touched_is_resident() -> None:
    t = empty((LARGE // 2,), BFLOAT16)
    assert address(t) % HUGE_PAGE == 0
    before = resident_bytes(address(t), t.nbytes)
    t[5 * HUGE_PAGE // 2] = 1
    t[5 * HUGE_PAGE // 2 + 9] = 2
    assert 0 < resident_bytes(address(t), t.nbytes) - before <= HUGE_PAGE
    t[LARGE // 4] = 3
    assert resident_bytes(address(t), t.nbytes) - before <= 2 * HUGE_PAGE


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's /proc")
def test_the_memory_is_given_back() -> None:
    t = empty((LARGE,), np.dtype(np.int8))
    at = address(t)
    part = t.reshape(-1, 16)[3:]
    del t
    gc.collect()
    part.fill(7)
    assert int(part.sum(dtype=np.int64)) == 7 * part.size
    assert resident_bytes(at, LARGE) > LARGE // 2
    del part
    gc.collect()
    assert resident_bytes(at, LARGE) < LARGE // 2


@pytest.mark.parametrize("elements", [0, 1, 3 * HUGE_PAGE, 5 * HUGE_PAGE + 3])
def test_shapes_of_any_size(elements: int) -> None:
    t = empty((elements, 2), np.dtype(np.float16))
    assert (t.shape, t.dtype) == ((elements, 2), np.dtype(np.float16))
    assert t.flags.c_contiguous
    assert elements == 0 or address(t) % ALIGNMENT == 0
    t.fill(2)
    assert (t == 2).all()


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's /proc")
def test_backed_memory_is_resident_and_unchanged() -> None:
    t = empty((LARGE,), np.dtype(np.uint8))
    t[7] = 5
    before = resident_bytes(address(t), t.nbytes)
    if not back(t[: 4 * HUGE_PAGE]):
        pytest.skip("the system cannot be asked to back memory")
    assert resident_bytes(address(t), t.nbytes) - before >= 3 * HUGE_PAGE
    assert t[7] == 5
    assert not t[8 : 4 * HUGE_PAGE].any()


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's /proc")
def test_equal_calls_share_memory() -> None:
    file = SharedFile()
    path = file.path
    shapes = ((3, 1000, 700), (5,))
    one, other = SharedArrays(path), SharedArrays(path)
    first, second = ([each.empty(shape, BFLOAT16) for shape in shapes] for each in (one, other))
    for mine, theirs in zip(first, second, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, BFLOAT16)
        assert address(mine) != address(theirs)
        mine.fill(len(mine))
    assert [int(each.min()) for each in second] == [int(each.max()) for each in second] == [3, 5]
    file.empty()
    assert not SharedArrays(path).empty((3, 1000, 700), BFLOAT16).any()
    file.close()
    file.close()
    assert not Path(path).exists()
