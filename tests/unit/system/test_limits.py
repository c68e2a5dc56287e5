"""Limits of a process's resources: what holds inside a block, and that it ends with it."""

from __future__ import annotations

import resource

import pytest

from quire.system.limits import memory_bounded


def test_memory_is_bounded_inside_the_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with memory_bounded(2**28):
        assert len(bytearray(2**24)) == 2**24
        with pytest.raises(MemoryError):
            bytearray(2**29)
        # Never more than outside.
        with memory_bounded(2**30), pytest.raises(MemoryError):
            bytearray(2**29)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
