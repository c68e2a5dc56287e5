"""The KV cache's tensors."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from quire.core.dtypes import BFLOAT16, FLOAT8_E4M3, HostArray, dtype_of
from quire.core.kv_sharing import SharedKV
from quire.models.memory import kv_bytes_per_token
from quire.ops.array import address
from quire.ops.torch_ops.provider import TorchOps
from quire.parallel.shared_memory import SharedFile
from quire.runner import kv_tensors
from quire.runner.kv_tensors import KVBacking, allocate_kv_caches
from tests.unit.runner.fakes import MODEL


def test_one_pair_a_layer() -> None:
    model = dataclasses.replace(MODEL, num_hidden_layers=3, num_key_value_heads=2, head_dim=4)
    caches = allocate_kv_caches(TorchOps(), model, 5, 16, BFLOAT16)
    assert len(caches) == 3
    for cache in caches:
        assert cache.k.shape == cache.v.shape == (5, 2, 16, 4)
        assert cache.k.dtype == cache.v.dtype == torch.bfloat16
        assert cache.k.is_contiguous()
        assert cache.k_scale is cache.v_scale is None
    assert len({t.data_ptr() for cache in caches for t in cache[:2]}) == 6


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_have_scales_and_the_bytes_that_were_planned(name: str) -> None:
    model = dataclasses.replace(MODEL, num_hidden_layers=3, num_key_value_heads=2, head_dim=64)
    caches = allocate_kv_caches(TorchOps(), model, 5, 16, dtype_of(name))
    for cache in caches:
        found = {str(t.dtype).removeprefix("torch.") + str(list(t.shape)) for t in cache.tensors}
        if name == "int8":
            assert found == {"int8[5, 2, 16, 64]", "bfloat16[5, 2, 16]"}
        else:
            assert found == {"uint8[5, 2, 16, 32]", "uint8[5, 2, 16]", "uint8[5, 2, 16, 8]"}
        assert cache.head_dim == 64
    nbytes = sum(t.nbytes for cache in caches for t in cache.tensors)
    assert nbytes == 5 * 16 * kv_bytes_per_token(model, name)


@pytest.mark.parametrize("scales", [False, True])
def test_8_bit_floats_have_scales_or_units(scales: bool) -> None:
    model = dataclasses.replace(MODEL, num_hidden_layers=2, num_key_value_heads=2, head_dim=64)
    units = [(0.5, 2.0), (1.0, 3.0)]
    caches = allocate_kv_caches(TorchOps(), model, 5, 16, FLOAT8_E4M3, scales=scales, units=units)
    nbytes = sum(t.nbytes for cache in caches for t in cache.tensors)
    planned = kv_bytes_per_token(model, "fp8_e4m3", scales)
    assert nbytes == 5 * 16 * planned
    assert kv_bytes_per_token(model, "bfloat16") / planned >= 1.9
    found = [(cache.k_unit, cache.v_unit) for cache in caches]
    assert found == ([(1.0, 1.0)] * 2 if scales else units)


def test_pages_are_backed_once_and_ahead_of_what_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = dataclasses.replace(MODEL, num_hidden_layers=1, num_key_value_heads=8, head_dim=128)
    [cache] = allocate_kv_caches(TorchOps(), model, 300, 16, BFLOAT16)  # 64 blocks a huge page
    asked: list[tuple[int, int]] = []

    def back(part: HostArray) -> bool:
        offset = address(part) - cache.k.data_ptr()
        if 0 <= offset < cache.k.nbytes:
            first = offset // cache.k[0].nbytes
            asked.append((first, first + len(part)))
        return True

    monkeypatch.setattr(kv_tensors, "back", back)
    backing = KVBacking(TorchOps(), [cache])
    for block in (0, 63, 64, 5, 290, 299):
        backing.reach(block)
        backing.wait()
    assert asked == [(0, 64), (64, 128), (128, 192), (192, 256), (256, 300)]
    asked.clear()
    behind = KVBacking(TorchOps(), [cache], SharedKV("", 128, 1, 2))
    for block in (5, 130):  # a block of another replica, and one of its own
        behind.reach(block)
        behind.wait()
    assert asked == [(128, 192), (192, 256)]
    asked.clear()
    lender = KVBacking(TorchOps(), [cache], SharedKV("", 250, 0, 2), ahead=70)
    for block in (0, 63, 64, 249):  # at once, and not the blocks of another replica
        lender.reach(block)
        lender.wait()
    assert asked == [(0, 64), (64, 128), (128, 192), (192, 250)]


def test_replicas_find_each_other_s_blocks() -> None:
    model = dataclasses.replace(MODEL, num_key_value_heads=2, head_dim=8)
    file = SharedFile()
    shared = SharedKV(file.path, 5, 0, 2)
    pair = [
        allocate_kv_caches(TorchOps(), model, 3, 16, dtype_of("int8"), shared=shared)
        for _ in range(2)
    ]
    file.close()
    for mine, theirs in zip(*pair, strict=True):
        for number, (a, b) in enumerate(zip(mine.tensors, theirs.tensors, strict=True)):
            assert a.shape[:2] == (10, 2)
            a[7] = number + 1
            assert (b[7] == number + 1).all()
            assert not b[8].any()
