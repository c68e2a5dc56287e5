"""Vision architectures by the names of Hugging Face's classes; torch-free."""

from __future__ import annotations

from typing import Any

from quire.core.images import VisionConfig
from quire.core.registry import Registry
from quire.models import hf
from quire.models.vision.architecture import VisionArchitecture

CLASSES = {
    "CLIPModel": "clip",
    "Exaone4_5_ForConditionalGeneration": "exaone4_5",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Glm46VForConditionalGeneration": "glm4v",
    "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v",
    "GlmOcrForConditionalGeneration": "glm_ocr",
    "Idefics3ForConditionalGeneration": "idefics3",
    "InternVLForConditionalGeneration": "internvl",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
    "LightOnOcrForConditionalGeneration": "lighton_ocr",
    "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava_next",
    "Mistral3ForConditionalGeneration": "mistral3",
    "PaddleOCRVLForConditionalGeneration": "paddleocr_vl",
    "PaliGemmaForConditionalGeneration": "paligemma",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl",
    "SiglipModel": "siglip",
    "SmolVLMForConditionalGeneration": "idefics3",
}
_CLIP, _PIXTRAL, _SIGLIP = "clip_vision_model", "pixtral", "siglip_vision_model"
_HERE = "quire.models.vision.families"
_KINDS = Registry(
    "vision architecture",
    {kind: f"{_HERE}.{kind}:ARCHITECTURE" for kind in (*CLASSES.values(), "pixtral")}
    | {"glm_ocr": f"{_HERE}.glm4v:OCR", "llava_siglip": f"{_HERE}.llava:ON_SIGLIP"},
)


def vision_architecture(kind: str) -> VisionArchitecture:
    found: VisionArchitecture = _KINDS.load(kind)
    return found


def vision_kind(config: hf.HFConfig) -> str | None:
    """Return the kind of a model that reads images; None if Quire has none under its name."""
    classes = config.get("architectures")
    found = classes if isinstance(classes, list) else []
    names = (name for name in found if isinstance(name, str))
    kind = next((CLASSES[name] for name in names if name in CLASSES), None)
    tower = config.get("vision_config")
    if kind not in ("llava", "llava_next") or not isinstance(tower, dict):
        return kind
    below = tower.get("model_type", _CLIP)
    if below == _PIXTRAL and kind == "llava":
        return "pixtral"
    # SigLIP has no class: a checkpoint that drops the first row drops a patch.
    if below == _SIGLIP:
        whole = config.get("vision_feature_select_strategy") == "full"
        return {"llava": "llava_siglip"}.get(kind, kind) if whole else None
    return kind if below == _CLIP else None


def text_config(config: hf.HFConfig, kind: str | None) -> dict[str, Any]:
    """Return the config.json of the text model alone; `kind` is None if its tower is unknown."""
    nested = hf.table(config, "text_config")
    text = dict(nested or config)
    text.pop("architectures", None)
    text.pop("vision_config", None)
    for name in ("torch_dtype", "dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id"):
        if text.get(name) is None and config.get(name) is not None:
            text[name] = config[name]
    tied = config.get("tie_word_embeddings")
    if nested and (kind in _OUTER_TIES or tied):
        text["tie_word_embeddings"] = True if tied is None else tied
    text = _DEFAULTS.get(str(text.get("model_type")), {}) | text
    theta, ropes = _THETAS.get(str(text.get("model_type"))), [hf.table(text, n) for n in _ROPES]
    if theta and not any(table.get("rope_theta") for table in (text, *ropes)):
        text["rope_theta"] = theta
    if kind == "clip":
        text["projection_dim"] = config.get("projection_dim", 512)
    if kind == "paligemma":  # of prompts (`VisionConfig.whole`)
        text.pop("use_bidirectional_attention", None)
    if kind is not None:
        family = vision_architecture(kind)
        text = family.text_config(text)
        if isinstance(model_type := text.get("model_type"), str):
            text["model_type"] = family.text_types.get(model_type, model_type)
    # M-RoPE turns like the plain one, but for its positions (`VisionConfig.sections`).
    for name in _ROPES:
        if (rope := hf.table(text, name)) and "mrope_section" in rope:
            plain = {key: value for key, value in rope.items() if key not in _MROPE}
            if plain.get("rope_type", plain.get("type", "mrope")) == "mrope":
                plain.pop("type", None)
                plain["rope_type"] = "default"
            text[name] = plain
    return text


_ROPES = ("rope_scaling", "rope_parameters")
_QWEN2_VL = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80}
_QWEN2_TYPES = ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
_QWEN3_TYPES = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text")
_THETAS = dict.fromkeys(_QWEN2_TYPES, 1e6) | dict.fromkeys(_QWEN3_TYPES, 5e5)
"""RoPE's base, where the text models alone have another default."""
_GEMMA = {"max_position_embeddings": 8192, "head_dim": 256, "vocab_size": 256000}
_DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_QWEN2_TYPES, _QWEN2_VL),
    "gemma": _GEMMA,
    "gemma2": _GEMMA | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
    },
    "qwen3_vl_moe_text": {
        "num_key_value_heads": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": True,
    },
}
"""What text models are that a checkpoint's text_config only names, as those of Gemma 3 and LLaVA
do."""
_MROPE = ("mrope_section", "mrope_interleaved")
_OUTER_TIES = ("gemma3", "gemma4", "lfm2_vl", "lighton_ocr", "paligemma")
"""Kinds that never read whether text_config ties the embeddings, as in Transformers."""


def parse_vision(config: hf.HFConfig, kind: str, text: Any) -> VisionConfig:
    """Return the tower of a config.json, whose text model is `text`."""
    found = vision_architecture(kind).parse(config, text)
    if not found.head_dim and found.hidden_size % found.num_heads:
        wanted = f"a divisor of the tower's width, {found.hidden_size}"
        raise hf.wrong("num_attention_heads", found.num_heads, wanted)
    return found
