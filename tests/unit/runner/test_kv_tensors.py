"""The KV cache's tensors."""

from __future__ import annotations

import dataclasses

import torch

from quire.runner.kv_tensors import allocate_kv_caches
from tests.unit.runner.fakes import MODEL


def test_one_pair_a_layer() -> None:
    model = dataclasses.replace(MODEL, num_hidden_layers=3, num_key_value_heads=2, head_dim=4)
    caches = allocate_kv_caches(model, 5, 16, torch.bfloat16)
    assert len(caches) == 3
    for cache in caches:
        assert cache.k.shape == cache.v.shape == (5, 2, 16, 4)
        assert cache.k.dtype == cache.v.dtype == torch.bfloat16
        assert cache.k.is_contiguous()
    assert len({t.data_ptr() for cache in caches for t in cache}) == 6
