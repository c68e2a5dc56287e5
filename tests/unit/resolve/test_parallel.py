"""Flags of ranks and stages: what they make of the other flags, and what cannot be."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError
from quire.models.memory import loaded_bytes
from quire.models.weights.shares import worker_configs
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.gpu_facts import Gpu
from quire.system.hardware import Hardware

GIB = 2**30
MACHINE = Hardware(cores=5, memory_bytes=16 * GIB, available_bytes=12 * GIB)
GPU = replace(MACHINE, gpu=Gpu("A GPU", 80 * GIB))


def resolved(hardware: Hardware = MACHINE, **fields: Any) -> EngineConfig:
    given = {"model": "qwen3-0.6b", "load_format": "dummy", "tensor_parallel_size": 2, **fields}
    return resolve(EngineArgs(**given), hardware).config


def test_threads_are_the_same_for_all_ranks() -> None:
    assert resolved(tensor_parallel_size=1).num_threads == 5
    config = resolved()
    assert (config.tensor_parallel_size, config.num_threads) == (2, 4)
    assert config.share is None


def test_a_tiny_model_has_a_thread_a_rank() -> None:
    assert resolved(model="embedded", load_format="auto").num_threads == 2


def test_the_context_is_what_fits_beside_every_ranks_weights() -> None:
    small = replace(MACHINE, memory_bytes=6 * GIB, available_bytes=6 * GIB)
    one, two = (resolved(small, tensor_parallel_size=ranks).scheduler for ranks in (1, 2))
    assert 1024 < two.max_model_len < one.max_model_len


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"tensor_parallel_size": 6}, "its own core, and this machine has 5"),
        ({"num_threads": 1}, "num_threads is 1"),
        ({"cpu_offload_gb": 1.0}, "cpu_offload_gb works with one"),
        ({"tensor_parallel_size": 3}, "16 attention heads"),
        ({"quantization": "gptq_actorder"}, "act-order"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        resolved(**fields)
    assert refused.value.param == "tensor_parallel_size"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pipeline_parallel_size": 6}, "6; each stage needs its own core, and this machine has 5"),
        ({"pipeline_parallel_size": 3, "tensor_parallel_size": 2}, "each of the 6 processes"),
        ({"cpu_offload_gb": 1.0}, "cpu_offload_gb works with one"),
        ({"ops": "reference"}, "the reference ops work with one stage"),
        ({"num_scheduler_steps": 2}, "omit num_scheduler_steps"),
    ],
)
def test_what_stages_cannot_do(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        resolved(**{"pipeline_parallel_size": 2, "tensor_parallel_size": 1, **fields})
    assert refused.value.param == "pipeline_parallel_size"


def test_the_port_of_each_machine_exists() -> None:
    fields = {"tensor_parallel_size": 1, "pipeline_parallel_size": 4, "nnodes": 4}
    assert resolved(**fields, master_port=65533).cluster.master_port == 65533
    with pytest.raises(ConfigError, match=r"machine 2 listens on port 65536.* at most 65533"):
        resolved(**fields, master_port=65534)


def test_the_address_of_node_0_is_one_without_a_port() -> None:
    fields = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2, "nnodes": 2}
    for right in ("::1", "10.0.0.1", "node-0.quire_nodes", "a.b."):
        assert resolved(**fields, master_addr=right).cluster.master_addr == right
    for wrong in ("10.0.0.1:29501", "tcp://a", "", "a b", "a..b", "x" * 64):
        with pytest.raises(ConfigError, match="host name or an IP address"):
            resolved(**fields, master_addr=wrong)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_of_stages_come_from_each_request_alone(method: str) -> None:
    given = {"model": "qwen3-0.6b", "load_format": "dummy", "pipeline_parallel_size": 2}
    found = resolve(EngineArgs(**given, speculative_config=f'{{"method": "{method}"}}'), MACHINE)
    drafts = found.config.scheduler.speculative
    assert drafts is not None
    if method == "suffix":
        assert drafts.suffix_decoding_max_cached_requests == 0
    assert any("not earlier answers" in note for note in found.notes) == (method == "suffix")


def test_stages_of_recurrent_layers(tmp_path: Path) -> None:
    """Each stage gets one, even if it is slower then."""
    config = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "vocab_size": 256}
    config |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config["max_position_embeddings"] = 128
    fields = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2, "model": str(tmp_path)}
    full = ["full_attention"]

    def layers_of(types: list[str]) -> tuple[int, ...]:
        (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": types}))
        return resolved(**fields, speculative_config='{"method": "ngram"}').stage_layers

    assert layers_of(["conv", *full] * 2) == (2, 2)
    assert layers_of([*full, *full, "conv", "conv"]) == (3, 1)
    assert layers_of(["conv", "conv", *full, *full]) == (1, 3)
    with pytest.raises(ConfigError, match="a stage has no recurrent layer"):
        layers_of([*full, "conv", *full, *full])


def test_layers_are_divided_by_predicted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage has fewer: it also makes the logits. Each has memory for as many blocks."""
    config = resolved(pipeline_parallel_size=2)
    first, last = config.stage_layers
    assert first + last == 28
    assert 1 <= last < first
    assert config.scheduler.micro_batches == config.steps_in_flight == 2
    assert config.num_threads == 4
    workers = worker_configs(config)
    assert [worker.model.layer_run for worker in workers] == [(0, first)] * 2 + [(first, last)] * 2
    left = [worker.memory_budget_bytes - loaded_bytes(worker) for worker in workers[::2]]
    assert left[0] * last == pytest.approx(left[1] * first, rel=0.1)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "10,18")
    assert resolved(pipeline_parallel_size=2).stage_layers == (10, 18)
    for wrong in ("28", "14,15", "x,2", "0,28"):
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", wrong)
        with pytest.raises(ConfigError, match=r"add up to the model's 28 layers"):
            resolved(pipeline_parallel_size=2)


def test_adapters_and_pooling_are_for_ranks_too() -> None:
    assert resolved(enable_lora=True).lora is not None
    assert resolved(model="bge-small-en-v1.5").pooling is not None


def test_each_rank_has_a_card() -> None:
    assert resolved(GPU).device == "cpu"
    two = replace(MACHINE, gpu=Gpu("A GPU", 80 * GIB, 2))
    config = resolved(two, ops="reference")
    assert config.device == "cuda"
    assert [worker.memory_budget_bytes for worker in worker_configs(config)] == [72 * GIB] * 2
    assert resolved(two, tensor_parallel_size=1).memory_budget_bytes == 72 * GIB
    with pytest.raises(ConfigError, match="needs a GPU, and the driver shows 2"):
        resolved(two, tensor_parallel_size=4, device="cuda")
    assert resolved(two, tensor_parallel_size=4).device == "cpu"


@pytest.mark.parametrize("flag", ["-tp", "--tensor-parallel-size", "--tensor_parallel_size"])
def test_spellings(flag: str) -> None:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    assert EngineArgs.from_cli_args(parser.parse_args([flag, "2"])).tensor_parallel_size == 2


def test_ray_has_a_machine_for_each_stage() -> None:
    """The others resolve the same configuration; one stage needs no other machine."""
    fields: dict[str, Any] = {"pipeline_parallel_size": 4, "distributed_executor_backend": "ray"}
    config = resolved(**fields, master_port=7)
    assert (config.cluster.nnodes, config.cluster.master_port) == (4, 7)
    other = resolve(EngineArgs(**json.loads(config.cluster.flags)), MACHINE).config
    assert other == replace(config, cluster=ClusterConfig(4))
    assert resolved(**fields, nnodes=2).cluster.nnodes == 2
    assert resolved(distributed_executor_backend="ray").cluster == ClusterConfig()
    with pytest.raises(ConfigError, match="each machine has as many stages"):
        resolved(**fields, nnodes=3)
