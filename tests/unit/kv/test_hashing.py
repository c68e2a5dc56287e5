from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kv.hashing import extend_block_hashes

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=100)


def request(token_ids: list[int], salt: str | None = None) -> Request:
    return Request(
        "r", token_ids, SamplingParams(), arrival_time=0, max_model_len=999, cache_salt=salt
    )


@given(tokens, tokens, st.sampled_from([8, 16, 32]))
def test_equal_hashes_exactly_where_prefixes_are_equal(
    a: list[int], b: list[int], size: int
) -> None:
    b = a[: len(a) // 2] + b
    ours, theirs = (extend_block_hashes(request(x), size) for x in (a, b))
    assert len(ours) == len(a) // size
    for i, (h, g) in enumerate(zip(ours, theirs, strict=False)):
        assert (h == g) == (a[: (i + 1) * size] == b[: (i + 1) * size])


@given(tokens, st.integers(0, 100))
def test_growing_gives_the_same_hashes_as_all_at_once(token_ids: list[int], cut: int) -> None:
    growing = request(token_ids[:cut])
    extend_block_hashes(growing, 8)
    growing.token_ids.extend(token_ids[cut:])
    assert extend_block_hashes(growing, 8) == extend_block_hashes(request(token_ids), 8)


def test_salts_share_nothing() -> None:
    hashes = [set(extend_block_hashes(request([1] * 64, salt), 16)) for salt in (None, "a", "b")]
    assert len(set.union(*hashes)) == 12
