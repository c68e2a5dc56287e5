"""Adapters in memory: who makes room, who does not, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.presets import preset_config
from quire.core.dtypes import FLOAT32, dtype_of
from quire.core.errors import CheckpointError, ModelNotFoundError, QuireError
from quire.core.lora import LoRAConfig, LoRARequest
from quire.lora.peft import read_adapter
from quire.lora.pool import AdapterPool
from quire.models.adapters import lora_targets, named_targets
from quire.models.registry import model_config
from quire.ops.lora import LoraTable
from tests.e2e.tiny_adapter import SHAPES, write_tiny_adapter
from tests.e2e.tiny_model import CONFIG

TARGETS = lora_targets(model_config(CONFIG))


@pytest.fixture
def tables() -> dict[str, LoraTable]:
    parts: dict[str, dict[int, tuple[int, int]]] = {}
    for target in TARGETS.values():
        parts.setdefault(target.stem, {})[target.part] = target.rows, target.columns
    return {
        stem: LoraTable(of[0][1], [of[i][0] for i in range(len(of))], 2, FLOAT32)
        for stem, of in parts.items()
    }


@pytest.fixture
def pool(tables: dict[str, LoraTable]) -> Iterator[AdapterPool]:
    pool = AdapterPool(tables, TARGETS, LoRAConfig(2, 8, 2), FLOAT32)
    yield pool
    pool.shutdown()


def adapters(folder: Path, count: int) -> list[LoRARequest]:
    return [
        LoRARequest(f"a{i}", i, str(write_tiny_adapter(folder / f"a{i}", i)))
        for i in range(1, count + 1)
    ]


def test_targets_are_the_models_layers() -> None:
    modules = {f"model.layers.{i}.{module}" for i in range(2) for module in SHAPES}
    assert set(TARGETS) == modules
    q, v = (TARGETS[f"model.layers.1.self_attn.{name}_proj"] for name in "qv")
    assert (q.stem, q.part, q.rows, q.columns) == ("layers.1.attn.qkv", 0, 64, 64)
    assert (v.stem, v.part, v.rows, v.columns) == ("layers.1.attn.qkv", 2, 32, 64)
    named = named_targets(model_config(CONFIG))
    for within in ("model.language_model", "language_model.model", "model.text_model"):
        assert named[f"{within}.layers.1.self_attn.v_proj"] == v
    gpt2 = lora_targets(model_config(preset_config("gpt2") or {}))
    assert gpt2["transformer.h.0.attn.c_attn"].rows == 3 * 768


def test_the_least_recently_used_makes_room(pool: AdapterPool, tmp_path: Path) -> None:
    one, two, three = adapters(tmp_path, 3)
    assert pool.acquire(one) != pool.acquire(two)
    pool.release(pool.acquire(one))  # a second user, who leaves
    assert pool.held() == {1: 1, 2: 1}
    pool.release(pool.acquire(two))
    held = pool.acquire(two)
    pool.release(held)
    pool.release(held)  # nobody uses it now
    assert pool.acquire(three) == held
    assert pool.held() == {1: 1, 3: 1}


def test_numbers_say_what_was_loaded(
    pool: AdapterPool, tables: dict[str, LoraTable], tmp_path: Path
) -> None:
    [request] = adapters(tmp_path, 1)
    number = pool.acquire(request)
    adapter = read_adapter(Path(request.lora_path), TARGETS, 8)
    assert len(adapter.deltas) == len(TARGETS)
    for delta in adapter.deltas:
        held = tables[delta.target.stem].get(number, delta.target.part)
        assert held[0].tolist() == delta.a.tolist()
        assert held[1].tolist() == delta.b.tolist()
        assert held[2] == delta.scale == 2.0
    pool.release(number)
    pool.remove(1)
    assert pool.held() == {}
    assert all(table.get(number, 0) is None for table in tables.values())
    pool.remove(1)  # once more is harmless


def test_one_that_is_removed_stays_while_it_is_used(pool: AdapterPool, tmp_path: Path) -> None:
    one, two, three = adapters(tmp_path, 3)
    number = pool.acquire(one)
    pool.remove(1)
    assert pool.held() == {1: 1}
    assert pool.acquire(two) != number
    pool.release(number)
    assert pool.held() == {2: 1}
    assert pool.acquire(three) == number


def test_add_answers_when_it_is_loaded(pool: AdapterPool, tmp_path: Path) -> None:
    one, two, three = adapters(tmp_path, 3)
    digests = set()
    for request in (one, two, three):
        while (digest := pool.add(request)) is None:
            pass
        assert digest == read_adapter(Path(request.lora_path), TARGETS, 8).digest
        digests.add(digest)
    assert len(digests) == 3
    assert pool.held() == {2: 0, 3: 0}


def loaded(future: Future[Any] | None) -> None:
    assert future is not None
    wait([future], 30)


def test_prefetching_takes_no_room_from_those_in_use(pool: AdapterPool, tmp_path: Path) -> None:
    one, two, three = adapters(tmp_path, 3)
    loaded(pool.prefetch(one))
    assert pool.prefetch(one) is None
    pool.acquire(one)
    loaded(pool.prefetch(two))
    pool.acquire(two)
    assert pool.prefetch(three) is None
    assert pool.held() == {1: 1, 2: 1}


def test_what_cannot_be_loaded_leaves_nothing(pool: AdapterPool, tmp_path: Path) -> None:
    missing = LoRARequest("x", 7, str(tmp_path / "nowhere"))
    for _ in range(2):
        with pytest.raises(ModelNotFoundError):
            pool.acquire(missing)
    loaded(pool.prefetch(missing))
    with pytest.raises(ModelNotFoundError):
        pool.add(missing)
    [request] = adapters(tmp_path, 1)
    changed = LoRARequest("a", 8, request.lora_path, b"another")
    with pytest.raises(CheckpointError, match="have changed"):
        pool.acquire(changed)
    assert pool.held() == {}


def test_values_that_the_dtype_cannot_hold(tables: dict[str, LoraTable], tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        next(iter(tensors.values()))[0, 0] = 1e6

    folder = write_tiny_adapter(tmp_path / "a", edit=spoil)
    pool = AdapterPool(tables, TARGETS, LoRAConfig(1, 8, 1), dtype_of("float16"))
    with pytest.raises(CheckpointError, match=r"float16 cannot hold"):
        pool.acquire(LoRARequest("a", 1, str(folder)))
    pool.shutdown()


def test_names_of_target_modules_without_tensors(tmp_path: Path) -> None:
    """Those that the model lacks change nothing, and neither do those that are excluded."""
    own = [module.rpartition(".")[2] for module in SHAPES]
    generic = write_tiny_adapter(tmp_path / "a", target_modules=[*own, "c_attn", "lm_head"])
    assert len(read_adapter(generic, TARGETS, 8).deltas) == len(TARGETS)

    def leave_out(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if "k_proj" in name]:
            del tensors[name]

    some = write_tiny_adapter(tmp_path / "b", edit=leave_out, exclude_modules=["k_proj"])
    assert len(read_adapter(some, TARGETS, 8).deltas) == len(TARGETS) - 2
    damaged = write_tiny_adapter(tmp_path / "c", edit=leave_out)
    with pytest.raises(CheckpointError, match="target module 'k_proj'"):
        read_adapter(damaged, TARGETS, 8)


@pytest.mark.parametrize(
    "fields",
    [
        {"rank_pattern": {"q_proj": 0}},
        {"rank_pattern": {"(a+)+$": 2}},
        {"rank_pattern": [1]},
        {"rank_pattern": {"q_proj": 9}},
        {"alpha_pattern": {"q_proj": float("inf")}},
        {"target_modules": "all"},
        {"target_modules": None},
        {"target_modules": [1]},
        {"init_lora_weights": "pissa_niter_4"},
        {"init_lora_weights": "lora_ga"},
        {"kasa_config": {"beta": 0.1}},
        {"layer_replication": [[0, 1]]},
        {"r": True},
        {"r": -1},
    ],
    ids=json.dumps,
)
def test_configurations_that_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = write_tiny_adapter(tmp_path / "a", **fields)
    if fields.get("target_modules") == "all":  # an expression: the tensors tell
        assert read_adapter(folder, TARGETS, 8).deltas
        return
    with pytest.raises(QuireError, match=r"adapter_config\.json: "):
        read_adapter(folder, TARGETS, 8)
