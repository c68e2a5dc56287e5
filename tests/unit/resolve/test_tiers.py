"""How the memory of the tiers is divided between blocks and states."""

from __future__ import annotations

import pytest

from quire.core.config import TierConfig
from quire.core.errors import ConfigError
from quire.executor.memory import MOST_EMPTY_BLOCKS
from quire.resolve.arguments import EngineArgs
from quire.resolve.tiers import divided

GIB = 2**30


def test_blocks_alone() -> None:
    args = EngineArgs("m", swap_space=1.0, kv_offloading_size=2.0)
    assert divided(args, GIB // 8, 0) == TierConfig(8, 16)


def test_states_get_a_quarter_and_nothing_is_swapped_by_name() -> None:
    args = EngineArgs("m", swap_space=1.0, kv_offloading_size=3.0, kv_offloading_dir="d")
    found = divided(args, GIB // 8, GIB // 16)
    assert found == TierConfig(0, 24, 16, "d", 16 * GIB)


def test_states_of_a_model_without_keys_and_values_get_all() -> None:
    args = EngineArgs("m", swap_space=1.0, kv_offloading_size=3.0)
    assert divided(args, 0, GIB // 16) == TierConfig(0, MOST_EMPTY_BLOCKS, 64)
    assert divided(EngineArgs("m"), 0, GIB // 16) == TierConfig()


@pytest.mark.parametrize(
    ("flags", "sizes", "field", "match"),
    [
        ({"kv_offloading_size": 1.0}, (GIB, 2 * GIB), "kv_offloading_size", "single state takes"),
        ({"swap_space": 1.0}, (GIB // 8, 2 * GIB), "swap_space", "single state takes"),
        ({"swap_space": 1.0}, (2 * GIB, 0), "swap_space", "single KV block takes"),
        ({"swap_space": 1.0}, (0, 0), "swap_space", "no keys and values"),
        ({"swap_space": 1.0}, (0, 2 * GIB), "swap_space", "single state takes"),
    ],
)
def test_too_little_memory_is_refused(
    flags: dict[str, float], sizes: tuple[int, int], field: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match) as error:
        divided(EngineArgs("m", **flags), *sizes)  # type: ignore[arg-type]
    assert error.value.param == field


def test_without_a_prefix_cache_no_state_is_kept() -> None:
    """A preempted request computes its tokens again."""
    args = EngineArgs("m", enable_prefix_caching=False, swap_space=1.0)
    assert divided(args, GIB // 8, GIB // 16) == TierConfig()
    args = EngineArgs("m", enable_prefix_caching=False, kv_offloading_size=1.0)
    with pytest.raises(ConfigError, match="without prefix caching"):
        divided(args, GIB // 8, GIB // 16)
