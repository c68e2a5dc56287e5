"""Small random models, made by Transformers and saved as real checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Mistral4Config,
    Mistral4ForCausalLM,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.golden.tiny_dense import DENSE_MODELS, DYNAMIC_ROPE, MAX_POSITIONS, VOCAB_SIZE, TinyModel
from tests.golden.tiny_experts import EXPERT_MODELS
from tests.golden.tiny_recurrent import RECURRENT_MODELS

__all__ = [
    "FEW_KINDS", "KINDS", "MAX_POSITIONS", "ONE_PLUS", "RECURRENT_MODELS", "TINY_MODELS",
    "VOCAB_SIZE", "make_tiny", "of_each_kind", "of_each_type", "save_byte_tokenizer", "tiny_config",
]  # fmt: skip

AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)
TINY_MODELS: dict[str, TinyModel] = DENSE_MODELS | EXPERT_MODELS
KINDS = frozenset({
    "llama-rope-llama3", "llama-rope-linear", "llama-mha-tied-biases", "llama-mqa-head-dim",
    "qwen2-sliding-tied", "qwen3", "phi3-longrope", "gemma2", "gemma3", "gemma4",
    "gemma4-values-of-keys", "gemma4-experts", "olmo2", "stablelm-biases", "smollm3",
    "granite4-no-positions", "glm4", "cohere2", "hunyuan", "ministral3", "nemotron", "bitnet",
    "gpt2", "gpt-neox", "opt", "opt-untied-gelu", "qwen2-moe", "qwen3-moe-some-dense",
    "ernie4_5-moe", "gpt-oss", "llama4", "phimoe",
    "deepseek-v2", "deepseek-v3", "minicpm3", "afmoe",
    "apertus", "mistral4", "nanochat",
})  # fmt: skip
"""Models that have between them what any of `TINY_MODELS` has, such as each activation, norm
position and kind of router (`test_native_ops`)."""
FEW_KINDS = frozenset({
    "llama-rope-llama3", "llama-mha-tied-biases", "qwen2-sliding-tied", "phi3-longrope", "gemma4",
    "gemma4-values-of-keys", "olmo2", "smollm3", "cohere2", "bitnet", "gpt2", "opt-untied-gelu",
    "qwen2-moe", "gpt-oss", "llama4", "deepseek-v3", "minicpm3",
})  # fmt: skip
"""Of `KINDS`, enough for a suite of what lies around the layers: each kind of cache, of order of
norms and sub-layers, of positions and of experts."""
ONE_PLUS = frozenset({
    "gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
})  # fmt: skip
"""Model types whose norms multiply by 1 + weight."""
_PUBLISHED = {"internlm3": "InternLM3ForCausalLM", "mistral4": "Mistral4ForCausalLM"}
"""Model types that Transformers saves under another class than the published files have, or has no
entry for."""


def of_each_kind(
    names: Iterable[str] = TINY_MODELS, *more: str, kinds: frozenset[str] = KINDS
) -> list[Any]:
    """Return all names as a test's parameters; `make test` takes those of `kinds`, and `more`."""
    kept = kinds.union(more)
    return [n if n in kept else pytest.param(n, marks=pytest.mark.slow) for n in names]


def of_each_type(models: Mapping[str, TinyModel] = TINY_MODELS) -> list[str]:
    """Return one name of each model type: of `FEW_KINDS`, if it has some, else its first."""
    ordered = sorted(models, key=lambda name: name not in FEW_KINDS)
    return list({models[name].model_type: name for name in reversed(ordered)}.values())


def save_byte_tokenizer(folder: Path) -> None:
    """Save a tokenizer of single bytes, for the tiny models' vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny_config(name: str) -> dict[str, Any]:
    """Return the config.json of `TINY_MODELS[name]`."""
    tiny = TINY_MODELS[name]
    config = AutoConfig.for_model(tiny.model_type, **tiny.config).to_dict()
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | _PUBLISHED
    return config | {"architectures": [names[tiny.model_type]]}


def make_tiny(name: str, seed: int, folder: Path, **changes: Any) -> PreTrainedModel:
    """Build `TINY_MODELS[name]`, or "llama-rope-dynamic", in float32; save it into `folder`.

    Every parameter is drawn anew: Transformers leaves biases at 0 and norms at 1 (Gemma's, to which
    1 is added, at 0), which would hide a bias that is never added. Matrices get a deviation near
    1 / sqrt(fan-in), so that attention is not uniform and the best two logits of 256 lie apart.
    """
    tiny = DYNAMIC_ROPE if name == "llama-rope-dynamic" else (TINY_MODELS | RECURRENT_MODELS)[name]
    config = AutoConfig.for_model(tiny.model_type, **tiny.config | changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter_name.endswith("correction_bias"):
                parameter.copy_(0.1 * noise)
            elif parameter.dim() == 1:
                is_scale = "norm" in parameter_name or ".ln_" in parameter_name
                is_scale = is_scale and parameter_name.endswith("weight")
                center = 1.0 if is_scale and tiny.model_type not in ONE_PLUS else 0.0
                parameter.copy_(center + 0.2 * noise)
            else:
                parameter.copy_(noise * 1.5 * min(parameter.shape) ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.copy_(1.0 + 0.2 * torch.randn(buffer.shape, generator=generator))
    model.eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    if tiny.model_type in _PUBLISHED:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"architectures": [_PUBLISHED[tiny.model_type]]}
        path.write_text(json.dumps(config))
    return model
