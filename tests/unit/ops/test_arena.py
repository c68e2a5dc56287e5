"""Buffers that live at the same time lie apart, and the arena is no larger than it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.ops.plans.arena import ALIGNMENT, Lifetime, aligned, assign_offsets

lifetimes = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(1, 5000),
        st.integers(0, 30),
        st.integers(0, 10),
    ),
    max_size=40,
)


@given(lifetimes)
def test_no_two_live_buffers_overlap(buffers: list[Lifetime]) -> None:
    offsets, total = assign_offsets(buffers)
    assert len(offsets) == len(buffers)
    for i, (a, start) in enumerate(zip(buffers, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.nbytes <= total
        for b, other in zip(buffers[:i], offsets[:i], strict=True):
            together = a.first <= b.last and b.first <= a.last
            apart = start + a.nbytes <= other or other + b.nbytes <= start
            assert apart or not together


@given(lifetimes)
def test_an_arena_is_between_the_most_that_lives_at_once_and_the_sum(
    buffers: list[Lifetime],
) -> None:
    _, total = assign_offsets(buffers)
    sizes = [(aligned(b.nbytes), b.first, b.last) for b in buffers]
    most = max(
        (sum(n for n, first, last in sizes if first <= t <= last) for t in range(41)), default=0
    )
    assert most <= total <= sum(n for n, _, _ in sizes)


def test_layers_reuse_their_predecessors_memory() -> None:
    """A chain, each buffer read by the next op alone, needs two."""
    chain = [Lifetime(1024, i, i + 1) for i in range(50)]
    assert assign_offsets(chain)[1] == 2 * 1024
