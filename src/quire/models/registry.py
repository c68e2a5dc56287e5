"""Architectures by name; torch-free, and imports an architecture only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.config import ModelConfig
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.registry import Registry, did_you_mean
from quire.models.architecture import Architecture

ARCHITECTURES = Registry(
    "architecture",
    {
        name: f"quire.models.{name}:ARCHITECTURE"
        for name in ("gemma", "gemma2", "gpt2", "llama", "mistral", "opt", "phi3", "qwen2", "qwen3")
    }
    | {"gemma3_text": "quire.models.gemma3:ARCHITECTURE"},
)
"""Keys are `ModelConfig.architecture`, and Hugging Face's `model_type`."""

HF_CLASSES = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GemmaForCausalLM": "gemma",
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "OPTForCausalLM": "opt",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Hugging Face's `architectures` → key."""


def architecture(name: str) -> Architecture:
    """The architecture under `ModelConfig.architecture`."""
    found: Architecture = ARCHITECTURES.load(name)
    return found


def model_config(hf_config: Mapping[str, Any]) -> ModelConfig:
    """The model that a config.json describes.

    Raises:
        UnsupportedModelError: an architecture Quire does not have, with those it has; or a
            variant of one it has.
        CheckpointError: a field is missing or wrong; names it.
    """
    name = _architecture_name(hf_config)
    return architecture(name).parse(hf_config)


def _architecture_name(hf_config: Mapping[str, Any]) -> str:
    classes = hf_config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError(
            f"config.json: architectures is {classes!r}; it must be a list of names.",
            param="architectures",
        )
    for class_name in classes:
        if class_name in HF_CLASSES:
            return HF_CLASSES[class_name]
    if classes:
        raise UnsupportedModelError(
            f"config.json: Quire does not have the architecture {', '.join(classes)}; "
            f"{did_you_mean(classes[0], HF_CLASSES)}.",
            param="architectures",
        )
    model_type = hf_config.get("model_type")
    if model_type is None:
        raise CheckpointError(
            "config.json names neither architectures nor model_type.",
            fix="Take the config.json that was published with the weights.",
            param="architectures",
        )
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"config.json: Quire does not have the model type {model_type!r}; "
            f"{did_you_mean(str(model_type), ARCHITECTURES.names())}.",
            param="model_type",
        )
    return str(model_type)
