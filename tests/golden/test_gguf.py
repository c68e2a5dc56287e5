"""Each architecture from GGUF: what Transformers computes of the model it was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_writer import GGUFWriter, PlannedTensor
from quire.ops.providers import load_ops
from quire.quantize.source import Source
from tests.golden.gguf_model import write_gguf_model
from tests.golden.harness import PagedModel, Sequence, load_decoder
from tests.golden.test_architectures import LOGIT_TOLERANCE
from tests.golden.tiny_models import MAX_POSITIONS, make_tiny
from tests.golden.transformers_oracle import NUM_TOKENS, Golden

MODELS = [
    "llama",
    "llama-mqa-head-dim",
    "llama-rope-llama3",
    "llama-rope-linear",
    "llama-rope-yarn",
    "qwen2",
    "qwen3",
    "mistral-sliding",
    "mixtral",
    "olmoe",
    "qwen2-moe",
    "qwen3-moe",
    "phi3",
    "phi3-longrope",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "olmo2",
    "starcoder2",
    "stablelm",
    "stablelm-biases",
    "smollm3",
    "granite",
    "seed_oss",
    "olmo3",
    "glm4",
    "exaone4-full",
    "cohere",
    "cohere2",
    "ernie4_5",
    "internlm3",
    "nemotron",
    "arcee",
    "hunyuan",
    "ministral3",
    "gpt-oss",
    "glm4-moe",
    "ernie4_5-moe",
    "granitemoe",
    "llama4-published",
    "deepseek-v2",
    "deepseek-v3",
    "glm4-moe-lite",
    "minicpm3",
    "phimoe-longrope",
    "bitnet-tied",
    "bitnet-biased-silu",
    "jais2",
    "hunyuan-moe",
]


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(
    name: str, tmp_path: Path, find: Callable[[str], tuple[str, Path, Golden]]
) -> None:
    _, folder, expected = find(name)
    path = write_gguf_model(folder, tmp_path / "model.gguf")
    assert len(gguf.GGUFReader(path).tensors) > 10
    ops = load_ops("cpu")
    decoder = load_decoder(path, MAX_POSITIONS, ops)
    paged = PagedModel(decoder, ops, block_size=16, num_blocks=40)
    (sequence,) = paged.generate([expected.prompt], NUM_TOKENS)
    assert sequence.tokens == expected.tokens
    torch.testing.assert_close(
        torch.cat(sequence.logits), expected.logits, rtol=0.0, atol=LOGIT_TOLERANCE
    )


def test_an_old_file_of_latent_attention(tmp_path: Path) -> None:
    """It has `kv_b_proj` in one tensor, and the widths of heads under other keys."""
    make_tiny("deepseek-v2", seed=0, folder=tmp_path / "model")
    path, old = write_gguf_model(tmp_path / "model", tmp_path / "new.gguf"), tmp_path / "old.gguf"
    source = Source(str(tmp_path / "model"), None, None)
    name, file = "model.layers.{}.self_attn.kv_b_proj.weight", GGUFFile(path)
    values = {
        f"blk.{i}.attn_kv_b.weight": source.weights.read(name.format(i))
        for i in range(source.config.num_hidden_layers)
    }
    values |= {
        name: file.raw(name).view(np.float32).reshape(tensor.shape)
        for name, tensor in file.tensors.items()
        if "attn_k_b" not in name and "attn_v_b" not in name
    }
    keys = {key: value for key, value in file.metadata.items() if not key.endswith("_mla")}
    keys["deepseek2.attention.key_length"] = file.metadata["deepseek2.attention.key_length_mla"]
    keys["deepseek2.attention.value_length"] = file.metadata["deepseek2.attention.value_length_mla"]
    planned = [PlannedTensor(name, "F32", array.shape) for name, array in values.items()]
    with GGUFWriter(old, keys, planned) as writer:
        for name, array in values.items():
            writer.add(name, array)
    one, two = (Source(str(each), None, None) for each in (path, old))
    assert one.config == two.config
    for name in one.names():
        assert np.array_equal(one.read(name), two.read(name)), name


STORY = Path(__file__).resolve().parents[2] / "src" / "quire" / "assets" / "story"
PROMPT = list(range(100, 2100, 100))


def dequantized(path: Path, target: Path) -> Path:
    """The same model with every tensor as gguf-py dequantizes it, in float32."""
    reader = gguf.GGUFReader(path)
    values = {
        t.name: gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape][::-1])
        for t in reader.tensors
    }
    planned = [PlannedTensor(name, "F32", array.shape) for name, array in values.items()]
    with GGUFWriter(target, GGUFFile(path).metadata, planned) as writer:
        for name, array in values.items():
            writer.add(name, array.astype(np.float32))
    return target


def logits(path: Path) -> torch.Tensor:
    ops = load_ops("reference")
    model = PagedModel(load_decoder(path, 64, ops), ops, block_size=16, num_blocks=4)
    sequence = Sequence(list(PROMPT))
    model.step([(sequence, len(PROMPT))])
    return torch.cat(sequence.logits)


@pytest.mark.parametrize("type_", [pytest.param("Q3_K", marks=pytest.mark.slow), "Q4_K", "Q6_K"])
def test_codes_compute_what_their_values_do(type_: str, tmp_path: Path) -> None:
    """The embedded model, its embeddings quantized too; odd rows are in types of short blocks."""
    path = write_gguf_model(STORY, tmp_path / "model.gguf", type_)
    plain = dequantized(path, tmp_path / "plain.gguf")
    torch.testing.assert_close(logits(path), logits(plain), rtol=0.0, atol=LOGIT_TOLERANCE)
