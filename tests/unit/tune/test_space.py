"""What is chosen from, and how it is spelled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.tune import space
from quire.tune.memory import STEP, largest


def test_the_start_is_the_first_value_of_each_field() -> None:
    start = EngineArgs(max_num_seqs=5, num_threads=2, kv_cache_memory_bytes=10**8, block_size=32)
    fields = space.search_space(start, 4, given={}, held=[], lossy=False)
    found = space.start_of(start, fields)
    assert all(values[0] == found[name] for name, values in fields.items())
    assert found["max_num_seqs"] == 5
    assert found["gpu_memory_utilization"] == 0.5  # what it is where it is unset
    assert all(len(values) == len(set(values)) for values in fields.values())
    assert fields["num_threads"] == [2, 1, 4]
    assert fields["kv_cache_memory_bytes"] == [10**8, None]
    assert "num_gpu_blocks_override" not in fields
    assert "quantization" not in fields
    assert space.apply(start, found) == replace(start, gpu_memory_utilization=0.5)


def test_held_given_and_lossy() -> None:
    fields = space.search_space(
        EngineArgs(), 2, given={"max_num_seqs": [3]}, held=["block_size"], lossy=True
    )
    assert fields["block_size"] == [16]
    assert fields["max_num_seqs"] == [64, 3]
    assert fields["quantization"] == [None, "int8", "int4"]
    assert fields["num_threads"] == [None, 1]


def test_a_bound_that_another_overrules_is_not_tried() -> None:
    fields = {"max_num_batched_tokens": [None, 512], "max_itl_stretch": [None, 2.0, math.inf]}
    pairs = [tuple(c.values()) for c in space.configurations(fields)]
    assert pairs == [(None, None), (None, 2.0), (None, math.inf), (512, None)]


def test_what_a_file_has_to_say() -> None:
    args = EngineArgs(model="m", max_num_seqs=8)
    assert space.file_values(args) == {"model": "m", "max_num_seqs": 8}


def test_show() -> None:
    start = space.start_of(EngineArgs(), {"max_num_seqs": [], "async_scheduling": []})
    assert space.show(start, start) == "the start"
    other = {"max_num_seqs": 8, "async_scheduling": True}
    assert space.show(other, start) == "max-num-seqs=8 async-scheduling=on"
    assert [space.show_value(v) for v in (None, 0.5, math.inf)] == ["auto", "0.5", "inf"]


def test_parse_space() -> None:
    texts = ["max-num-seqs=8, 16,8", "--max_num_batched_tokens=none,512", "max-itl-stretch=inf"]
    assert space.parse_space(texts) == {
        "max_num_seqs": [8, 16],
        "max_num_batched_tokens": [None, 512],
        "max_itl_stretch": [math.inf],
    }
    assert space.parse_space(["async-scheduling=true,false", "kv-cache-memory-bytes=1GiB"]) == {
        "async_scheduling": [True, False],
        "kv_cache_memory_bytes": [2**30],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-sqes=8", "did you mean max_num_seqs"),
        ("max-num-seqs", "Write for example"),
        ("max-num-seqs=", "Write for example"),
        ("max-num-seqs=many", "cannot be 'many'"),
        ("kv-cache-dtype=int3", "is one of auto, bf16"),
        ("async-scheduling=1", "true or false"),
        ("max-num-seqs=none", "cannot be 'none'"),
    ],
)
def test_wrong_spaces(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space.parse_space([text])


@given(st.floats(0, 1.2), st.floats(0.02, 0.9), st.floats(0.02, 1.0))
def test_the_largest_share(limit: float, low: float, high: float) -> None:
    """Bisection: whatever works, nothing smaller that was tried failed, and the next fails."""
    tried: dict[float, bool] = {}

    def works(share: float) -> bool:
        assert share not in tried
        tried[share] = share <= limit
        return tried[share]

    found = largest(works, low, high)
    assert len(tried) <= 8
    assert all(low - 1e-9 <= share <= high + 1e-9 for share in tried)
    if found is None:
        assert not any(tried.values())
    else:
        assert found <= limit
        following = round(found + STEP, 4)
        assert following > high or following > limit
