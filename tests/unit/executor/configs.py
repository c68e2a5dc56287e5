"""Engine configurations of the tests."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from quire.core.config import EngineConfig, SchedulerConfig
from quire.core.model_config import ModelConfig, RopeConfig

TINY = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    rope=RopeConfig(theta=10000.0, rotary_dim=8),
)
"""Keys and values of a token: 2 · 2 layers · 2 heads · 8 = 64 numbers, 256 bytes in float32."""


def config(
    *, max_num_seqs: int = 4, max_model_len: int = 128, max_tokens: int = 64, **changes: Any
) -> EngineConfig:
    base = EngineConfig(
        model_path="tiny",
        model=TINY,
        load_format="dummy",
        dtype="float32",
        quantization=None,
        kv_cache_dtype=changes.get("dtype", "float32"),
        seed=0,
        block_size=16,
        num_blocks=None,
        kv_cache_memory_bytes=None,
        memory_budget_bytes=2**36,  # pytest's process has grown to some GB by then
        enable_prefix_caching=True,
        scheduler=SchedulerConfig(max_model_len, max_num_seqs, max_tokens),
        ops="reference",
        num_threads=min(2, os.cpu_count() or 1),
    )
    return dataclasses.replace(base, **changes)
