"""Architectures by name; torch-free, and imports an architecture only when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.core.registry import Registry, did_you_mean
from quire.models import heads
from quire.models.architecture import Architecture, WeightNames
from quire.models.architectures import llama
from quire.models.vision.registry import CLASSES, parse_vision, text_config, vision_kind

_DECODERS = {
    "Afmoe": "afmoe",
    "Apertus": "apertus",
    "Arcee": "arcee",
    "Bamba": "bamba",
    "BitNet": "bitnet",
    "Cohere": "cohere",
    "Cohere2": "cohere2",
    "Cwm": "cwm",
    "DeepseekV2": "deepseek_v2",
    "DeepseekV3": "deepseek_v3",
    "Dots1": "dots1",
    "Ernie4_5": "ernie4_5",
    "Ernie4_5_Moe": "ernie4_5_moe",
    "Exaone4": "exaone4",
    "ExaoneMoe": "exaone_moe",
    "Falcon": "falcon",
    "FalconH1": "falcon_h1",
    "FlexOlmo": "flex_olmo",
    "GPT2": "gpt2",
    "GPTBigCode": "gpt_bigcode",
    "GPTJ": "gptj",
    "GPTNeo": "gpt_neo",
    "Gemma": "gemma",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3_text",
    "Gemma4": "gemma4_text",
    "Glm": "glm",
    "Glm4": "glm4",
    "Glm4Moe": "glm4_moe",
    "Glm4MoeLite": "glm4_moe_lite",
    "GPTNeoX": "gpt_neox",
    "GptOss": "gpt_oss",
    "Granite": "granite",
    "GraniteMoe": "granitemoe",
    "GraniteMoeHybrid": "granitemoehybrid",
    "GraniteMoeShared": "granitemoeshared",
    "GraniteMoeSWA": "granitemoe_swa",
    "GraniteSWA": "granite_swa",
    "Helium": "helium",
    "HunYuanDenseV1": "hunyuan_v1_dense",
    "HunYuanMoEV1": "hunyuan_v1_moe",
    "HyperCLOVAX": "hyperclovax",
    "HYV3": "hy_v3",
    "InternLM3": "internlm3",
    "Jais2": "jais2",
    "KimiLinear": "kimi_linear",
    "Lfm2": "lfm2",
    "Lfm2Moe": "lfm2_moe",
    "Lfm3": "lfm3",
    "Llama": "llama",
    "Llama4": "llama4_text",
    "Mamba2": "mamba2",
    "Mellum": "mellum",
    "MiniCPM3": "minicpm3",
    "MiniMaxM2": "minimax_m2",
    "Ministral": "ministral",
    "Ministral3": "ministral3",
    "Mistral": "mistral",
    "Mistral4": "mistral4",
    "Mixtral": "mixtral",
    "NanoChat": "nanochat",
    "Nemotron": "nemotron",
    "NemotronH": "nemotron_h",
    "OPT": "opt",
    "Olmo": "olmo",
    "Olmo2": "olmo2",
    "Olmo3": "olmo3",
    "Olmoe": "olmoe",
    "Phi": "phi",
    "Phi3": "phi3",
    "Phimoe": "phimoe",
    "Qwen2": "qwen2",
    "Qwen2Moe": "qwen2_moe",
    "Qwen3": "qwen3",
    "Qwen3Moe": "qwen3_moe",
    "Qwen3Next": "qwen3_next",
    "Qwen3_5": "qwen3_5_text",
    "Qwen3_5Moe": "qwen3_5_moe_text",
    "SeedOss": "seed_oss",
    "SmolLM3": "smollm3",
    "SolarOpen": "solar_open",
    "StableLm": "stablelm",
    "Starcoder2": "starcoder2",
    "VaultGemma": "vaultgemma",
    "Youtu": "youtu",
}
_ENCODERS = {
    "Bert": "bert",
    "DistilBert": "distilbert",
    "ModernBert": "modernbert",
    "Roberta": "roberta",
    "XLMRoberta": "xlm-roberta",
}
PAIRED = ("clip_text_model", "siglip_text_model")
"""Text models whose embeddings lie beside those of images."""
_MODULES = {
    "clip_text_model": "clip_text",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "llama4_text": "llama4",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "siglip_text_model": "siglip_text",
    "xlm-roberta": "roberta",
}
_TEXT = {
    "Gemma3": "Gemma3Text",
    "Gemma4": "Gemma4Text",
    "Llama4": "Llama4Text",
    "Qwen3_5": "Qwen3_5Text",
    "Qwen3_5Moe": "Qwen3_5MoeText",
}
"""Where the plain name is the one of a model that sees, too."""
_CAUSAL = {"GPT2": "GPT2LMHeadModel"}
_CLASSIFIER = "ForSequenceClassification"

ARCHITECTURES = Registry(
    "architecture",
    {
        name: f"quire.models.architectures.{_MODULES.get(name, name)}"
        for name in (*_DECODERS.values(), *_ENCODERS.values(), *PAIRED)
    },
)
"""Keys are Hugging Face's `model_type`; those of `ModelConfig.architecture` are among them."""

HF_CLASSES = (
    {_CAUSAL.get(name, f"{name}ForCausalLM"): key for name, key in _DECODERS.items()}
    | {
        f"{_TEXT.get(name, name)}{end}": key
        for name, key in (_DECODERS | _ENCODERS).items()
        for end in ("Model", _CLASSIFIER)
    }
    | {f"{name}ForMaskedLM": key for name, key in _ENCODERS.items()}
)
"""Hugging Face's `architectures` → key."""


def task(hf_config: Mapping[str, Any]) -> Literal["generate", "embed", "classify"]:
    """Return the task for which a config.json's weights were saved, for a known architecture."""
    for name in hf_config.get("architectures") or []:
        if name in HF_CLASSES:
            if name.endswith(_CLASSIFIER):
                return "classify"
            return "generate" if name.endswith(("ForCausalLM", "LMHeadModel")) else "embed"
    embed = (*_ENCODERS.values(), "clip", "siglip")
    return "embed" if hf_config.get("model_type") in embed else "generate"


def weight_names(model: ModelConfig) -> WeightNames:
    """Return the names of a model's weights; heads that it lacks stay unread."""
    found = architecture(model.architecture)
    names = heads.without_mtp(model, found)
    if model.draft_head is not None:
        return heads.names(model.draft_head, found.names)
    if model.lm_head:
        return names
    top, ignored = dict(names.top), rf"{names.ignored}|lm_head\b.*"
    if model.num_labels and not is_encoder(model):
        top["head.out"] = f"{names.base_prefix}score"
    else:
        ignored += r"|score\b.*"
    return replace(names, top=top, ignored=ignored)


def is_encoder(model: ModelConfig) -> bool:
    """Return whether the architecture encodes texts and does not generate them."""
    return model.architecture in (*_ENCODERS.values(), *PAIRED)


@cache
def architecture(name: str) -> Architecture:
    """Return the architecture under `ModelConfig.architecture`: what its module says."""
    module = ARCHITECTURES.load(name)
    names = getattr(module, "NAMES", llama.NAMES)
    return Architecture(module.parse, names, getattr(module, "MTP", None))


def model_config(hf_config: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of the model that a config.json describes.

    Raises:
        UnsupportedModelError: an architecture Quire does not have, with those it has; or a
            variant of one it has.
        CheckpointError: a field is missing or wrong; names it.
    """
    kind = vision_kind(hf_config)
    nested = kind is not None or text_alone(hf_config)
    text_only = text_config(hf_config, kind) if nested else hf_config
    name = _architecture_name(text_only)
    text = architecture(name).parse({**text_only, "model_type": name})
    if not text.layers_with("recurrent"):  # all layers of a hybrid may have attention
        text = replace(text, recurrent=None)
    return text if kind is None else replace(text, vision=parse_vision(hf_config, kind, text))


def text_alone(hf_config: Mapping[str, Any]) -> bool:
    """Return whether a config.json's model also reads what Quire has no tower for, while Quire has
    its text model, which can be served alone."""
    classes, text = hf_config.get("architectures"), hf_config.get("text_config")
    if not isinstance(classes, list) or not isinstance(text, Mapping):
        return False
    names = [name for name in classes if isinstance(name, str)]
    known = any(name in HF_CLASSES for name in names) or vision_kind(hf_config) is not None
    writes = any(name.endswith("ForConditionalGeneration") for name in names)
    return writes and not known and text.get("model_type") in _DECODERS.values()


_TEXT_PART = re.compile(r"(?:model\.)?(?:language|text)_model\.")
_PLAIN = re.compile(r"(?:lm_head|mtp|(?:model\.)?(?:layers|embed_tokens|norm))\.")


def text_name(stored: str) -> str | None:
    """Return a tensor's name in the text model of such a config.json; None if it is not there."""
    name, found = _TEXT_PART.subn("", stored, count=1)
    return name if found or _PLAIN.match(name) else None


def _family(class_name: str) -> str:
    name = class_name.partition("For")[0]
    return name.removesuffix("Model").removesuffix("LMHead").removesuffix("Text")


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
    if classes and "vision_config" in hf_config:
        raise UnsupportedModelError(
            f"config.json: {', '.join(classes)} also reads images (vision_config); of such models "
            f"Quire has {', '.join(CLASSES)} (LLaVA only with a tower of CLIP, SigLIP or Pixtral).",
            fix="Use one of them, or a checkpoint of the text model alone.",
            param="architectures",
        )
    if classes:
        # A similar name is another model: only a class of the same family may be meant.
        same = [name for name in HF_CLASSES if _family(name) == _family(classes[0])]
        known = f"Quire has the families {', '.join(ARCHITECTURES.names())}."
        raise UnsupportedModelError(
            f"config.json: Quire does not have the architecture {', '.join(classes)}.",
            fix=f"Of this family it has {', '.join(sorted(same))}." if same else known,
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
