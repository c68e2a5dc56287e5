"""Quire runs the GGUF files of random weights by which llama.cpp is measured."""

import json
from pathlib import Path

import pytest

from quire.bench.peers.write_gguf import write
from quire.checkpoint.presets import preset_config
from quire.ops.providers import load_ops
from tests.golden.harness import PagedModel, load_decoder


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("preset", ["qwen3-0.6b", "qwen3-30b-a3b", "olmoe-1b-7b", "qwen3-next-4l"])
def test_a_small_copy_of_a_preset_runs(preset: str, quantization: str, tmp_path: Path) -> None:
    config = {**(preset_config(preset) or {}), "vocab_size": 512, "hidden_size": 256}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"intermediate_size": 256, "max_position_embeddings": 128}
    if "num_experts" in config:
        config |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    if preset == "olmoe-1b-7b":
        config["num_key_value_heads"] = 4
        del config["moe_intermediate_size"]
    if "full_attention_interval" in config:
        config |= {"full_attention_interval": 2, "linear_key_head_dim": 32}
        config |= {"linear_value_head_dim": 32, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "model.gguf"
    write(str(tmp_path), quantization, path)
    decoder = load_decoder(path, 32, load_ops("reference"))
    model = decoder.config
    assert (model.num_hidden_layers, model.hidden_size, model.vocab_size) == (2, 256, 512)
    assert (model.moe is not None) == ("num_experts" in config)
    paged = PagedModel(decoder, load_ops("reference"), block_size=16, num_blocks=4)
    (sequence,) = paged.generate([[5, 6, 7]], 3)
    assert len(sequence.tokens) == 6
