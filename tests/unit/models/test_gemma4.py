"""Gemma 4's layers, and what needs layers that are alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.dtypes import BFLOAT16
from quire.core.errors import QuireError
from quire.core.model_config import OWN_INPUTS, ModelConfig
from quire.models.memory import kv_bytes_per_token
from quire.models.registry import model_config
from quire.models.weights.shares import shared_model, worker_configs
from quire.ops.torch_ops.provider import TorchOps
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.runner.kv_tensors import allocate_kv_caches, in_layer_order
from quire.system.hardware import Hardware

CONFIG: dict[str, Any] = {
    "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "vocab_size": 256,
    "vocab_size_per_layer_input": 256, "hidden_size": 64, "intermediate_size": 80,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "global_head_dim": 32, "max_position_embeddings": 512, "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}  # fmt: skip


def parsed(**changes: Any) -> ModelConfig:
    return model_config(CONFIG | changes)


def test_borrowing_layers_read_the_last_layer_of_their_kind() -> None:
    model = parsed()
    assert [model.kv_owner(layer) for layer in model.layers] == [0, 1, 2, 1, 2, 1]
    assert [model.kv_shape(layer) for layer in (0, 1)] == [(2, 16), (2, 32)]
    caches = allocate_kv_caches(TorchOps(), model, 3, 16, BFLOAT16)
    assert [tuple(cache.k.shape) for cache in caches] == [
        (3, 2, 16, 16), (3, 2, 16, 32), (3, 2, 16, 16),
    ]  # fmt: skip
    assert sum(t.nbytes for c in caches for t in c.tensors) == 3 * 16 * kv_bytes_per_token(
        model, "bfloat16"
    )
    handles = in_layer_order(model, caches)
    assert [handle.k.data_ptr() for handle in handles] == [
        caches[i].k.data_ptr() for i in (0, 1, 2, 1, 2, 1)
    ]
    assert len({id(handle) for handle in handles}) == 6  # a profile names each layer


def test_a_rank_has_its_heads_of_both_kinds() -> None:
    large = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    share = shared_model(parsed(**large), 1, 2)
    assert (share.num_key_value_heads, share.full_heads) == (1, (1, 32))
    assert share.borrower_mlp == 80


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5"),
        ({"enable_moe_block": True}, "num_experts"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "top_k_experts"),
        ({"vocab_size_per_layer_input": 128}, "vocab_size_per_layer_input is 128"),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, "per_layer_config"),
        ({"per_layer_config": {"0": {"head_dim": 24}}}, "per_layer_config"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(QuireError, match=named):
        parsed(**changes)


@pytest.mark.parametrize(
    ("changes", "flags", "why"),
    [
        ({}, {"pipeline_parallel_size": 3}, "layers 1 to 5 share keys and values"),
        ({}, {"enable_prompt_embeds": True}, "looks up the token"),
    ],
)
def test_flags_that_cannot_be(
    changes: dict[str, Any], flags: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    args = EngineArgs(str(tmp_path), load_format="dummy", **flags)
    with pytest.raises(QuireError, match=why) as refused:
        resolve(args, Hardware(cores=4, memory_bytes=2**34, available_bytes=2**33))
    assert refused.value.param == next(iter(flags))


def test_layers_that_share_keys_and_values_are_on_one_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    args = EngineArgs(str(tmp_path), load_format="dummy", pipeline_parallel_size=2)
    hardware = Hardware(cores=4, memory_bytes=2**34, available_bytes=2**33)
    config = resolve(args, hardware).config
    assert config.stage_layers == (1, 5)
    first, last = (share.model for share in worker_configs(config))
    assert [model.own_columns for model in (first, last)] == [48, 48]
    assert (first.own_taps, last.own_taps) == ([OWN_INPUTS], [])
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "3,3")
    with pytest.raises(QuireError, match="layers from 1 on share keys and values"):
        resolve(args, hardware)
