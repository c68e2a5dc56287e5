"""Tiny random models that read images, written where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from tests.e2e.tiny_model import BOS, EOS, byte_tokenizer

IMAGE, IMAGE_TEXT = 258, "<image>"
"""The token that stands for an image."""
ROW = 259
"""The token of an image's rows, where it is another."""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
_TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
_MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_QWEN: dict[str, Any] = {
    "text_config": _TEXT | {"rope_parameters": _MROPE},
    "image_token_id": IMAGE,
    "vision_start_token_id": 291,
    "vision_end_token_id": 292,
    "video_token_id": 293,
}
_GLM = {name: value for name, value in _QWEN.items() if not name.startswith("vision")}
_GEMMA4 = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2,
    "position_embedding_size": 300,
}  # fmt: skip
_GLM_TOWER = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "image_size": 16,
    "out_hidden_size": 64,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 32,
}
_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "patch_size": 4, "image_size": 40,
}  # fmt: skip
_SIZES = [[32, 64], [64, 32], [64, 64], [96, 32]]
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3",
        {
            "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 2} | _TOWER,
            "text_config": {
                "model_type": "gemma3_text", **_TEXT, "head_dim": 16, "sliding_window": 8,
                "query_pre_attn_scalar": 16,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "mm_tokens_per_image": 4,
            "image_token_index": ROW,
            "boi_token_index": IMAGE,
            "eoi_token_index": 260,
        },
        {"size": {"height": 32, "width": 32}},
    ),
    "gemma4": (
        "Gemma4",
        {
            "vision_config": _GEMMA4 | {"use_clipped_linears": True},
            "text_config": _TEXT | {
                "head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 4,
                "num_kv_shared_layers": 2, "sliding_window": 8, "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 300, "pad_token_id": 3,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            "audio_config": None,
            "image_token_id": IMAGE,
            "boi_token_id": ROW,
            "eoi_token_id": 260,
            "video_token_id": 293,
            "audio_token_id": 294,
        },
        {"max_soft_tokens": 70, "patch_size": 4, "pooling_kernel_size": 2},
    ),
    "gemma4_moe": (
        "Gemma4",
        {
            "vision_config": _GEMMA4 | {"standardize": True, "num_key_value_heads": 1},
            "text_config": _TEXT | {
                "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
                "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4,
                "top_k_experts": 2, "moe_intermediate_size": 32, "pad_token_id": 0,
                "layer_types": ["sliding_attention", "full_attention"],
                "use_bidirectional_attention": "vision",
            },
            "audio_config": None,
            "image_token_id": IMAGE,
            "boi_token_id": ROW,
            "eoi_token_id": 260,
            "video_token_id": 293,
            "audio_token_id": 294,
        },
        {"max_soft_tokens": 70, "patch_size": 4, "pooling_kernel_size": 2},
    ),
    "llava": (
        "Llava",
        {
            "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 3, **_TOWER},
            "text_config": {"model_type": "llama", **_TEXT},
            "image_token_index": IMAGE,
        },
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    ),
    "llava_siglip": (
        "Llava",
        {
            "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 3, **_TOWER}
            | {"image_size": 36},
            "text_config": {"model_type": "qwen2", **_TEXT},
            "image_token_index": IMAGE,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        {"size": {"height": 36, "width": 36}},
    ),
    "internvl": (
        "InternVL",
        {
            "vision_config": {"num_hidden_layers": 2, "attention_bias": True} | _TOWER,
            "text_config": {"model_type": "qwen2", **_TEXT, "tie_word_embeddings": False},
            "image_token_id": IMAGE,
            "tie_word_embeddings": False,
        },
        {
            "size": {"height": 32, "width": 32}, "crop_to_patches": True, "max_patches": 4,
            "image_mean": [0.48, 0.45, 0.4], "image_std": [0.2, 0.25, 0.3],
        },
    ),
    "internvl_normed": (
        "InternVL",
        {
            "vision_config": {
                "num_hidden_layers": 2, "norm_type": "rms_norm", "use_qk_norm": True, **_TOWER,
            },
            "text_config": {"model_type": "qwen3", **_TEXT, "head_dim": 32},
            "image_token_id": IMAGE,
            "tie_word_embeddings": False,
        },
        {"size": {"height": 32, "width": 32}, "crop_to_patches": True, "max_patches": 4},
    ),
    "llava_next": (
        "LlavaNext",
        {
            "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 3, **_TOWER},
            "text_config": {"model_type": "llama", **_TEXT},
            "image_token_index": IMAGE,
            "image_grid_pinpoints": _SIZES,
        },
        {
            "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
            "image_grid_pinpoints": _SIZES,
        },
    ),
    "lfm2_vl": (
        "Lfm2Vl",
        {
            "vision_config": {
                "model_type": "siglip2_vision_model", "num_hidden_layers": 2, **_TOWER,
                "patch_size": 4, "num_patches": 16,
            },
            "text_config": {
                "model_type": "lfm2", **_TEXT, "block_multiple_of": 16, "conv_L_cache": 3,
                "layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4,
            },
            "image_token_id": IMAGE,
            "projector_hidden_size": 40,
        },
        {
            "encoder_patch_size": 4, "tile_size": 16, "max_tiles": 4, "min_image_tokens": 4,
            "max_image_tokens": 16,
        },
    ),
    "lighton_ocr": (
        "LightOnOcr",
        {
            "vision_config": _PIXTRAL | {"hidden_act": "silu"},
            "text_config": {"model_type": "qwen3", **_TEXT, "head_dim": 16},
            "image_token_id": IMAGE,
        },
        {"size": {"longest_edge": 40}, "patch_size": {"height": 8, "width": 8}},
    ),
    "granite_vision": (
        "LlavaNext",
        {
            "vision_config": {
                "model_type": "siglip_vision_model", "num_hidden_layers": 3, **_TOWER,
                "image_size": 36,
            },
            "text_config": {"model_type": "granite", **_TEXT},
            "image_token_index": IMAGE,
            "image_grid_pinpoints": [[36, 72], [72, 36], [72, 72]],
            "vision_feature_layer": [-3, -1],
            "vision_feature_select_strategy": "full",
        },
        {
            "size": {"height": 36, "width": 36}, "crop_size": {"height": 36, "width": 36},
            "image_grid_pinpoints": [[36, 72], [72, 36], [72, 72]], "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
    "mistral3": (
        "Mistral3",
        {
            "vision_config": _PIXTRAL,
            "text_config": {"model_type": "mistral", **_TEXT, "rms_norm_eps": 1e-5},
            "image_token_index": IMAGE,
            "tie_word_embeddings": False,
        },
        {"size": {"longest_edge": 40}, "patch_size": {"height": 8, "width": 8}},
    ),
    "pixtral": (
        "Llava",
        {
            "vision_config": _PIXTRAL | {"hidden_act": "silu"},
            "text_config": {"model_type": "mistral", **_TEXT},
            "image_token_index": IMAGE,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        {"size": {"longest_edge": 40}, "patch_size": {"height": 4, "width": 4}},
    ),
    "paddleocr_vl": (
        "PaddleOCRVL",
        {
            "vision_config": {
                "num_hidden_layers": 2, **_TOWER, "patch_size": 4, "image_size": 16,
            },
            "text_config": _TEXT | {"head_dim": 16, "rope_parameters": _MROPE},
            "image_token_id": IMAGE,
            "vision_start_token_id": 291,
            "vision_end_token_id": 292,
            "video_token_id": 293,
        },
        {"size": {"shortest_edge": 64, "longest_edge": 2048}, "patch_size": 4},
    ),
    "paligemma": (
        "PaliGemma",
        {
            "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 2} | _TOWER,
            "text_config": {"model_type": "gemma", **_TEXT, "head_dim": 16},
            "image_token_index": IMAGE,
            "projection_dim": 64,
        },
        {"size": {"height": 32, "width": 32}, "resample": 3},
    ),
    "qwen2_vl": (
        "Qwen2VL",
        _QWEN
        | {
            "vision_config": {
                "depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 4, "hidden_size": 64,
            },
        },
        {"min_pixels": 64, "max_pixels": 2048, "patch_size": 4},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        _QWEN
        | {
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
                "patch_size": 4, "out_hidden_size": 64, "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
        {"min_pixels": 64, "max_pixels": 2048, "patch_size": 4},
    ),
    "exaone4_5": (
        "Exaone4_5_",
        {
            "text_config": {
                "model_type": "exaone4", **_TEXT, "head_dim": 16, "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "image_token_id": IMAGE,
            "video_token_id": 293,
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4,
                "num_key_value_heads": 2, "patch_size": 4, "out_hidden_size": 64,
                "window_size": 16, "fullatt_block_indexes": [1],
            },
        },
        {"min_pixels": 64, "max_pixels": 2048, "patch_size": 4},
    ),
    "glm4v": (
        "Glm4v",
        _GLM
        | {
            "text_config": _TEXT | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}},
            "vision_config": _GLM_TOWER | {"intermediate_size": 44},
        },
        {"size": {"shortest_edge": 128, "longest_edge": 4096}, "patch_size": 4},
    ),
    "glm4v_moe": (
        "Glm4vMoe",
        _GLM
        | {
            "text_config": _TEXT
            | {
                "head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                "topk_group": 1, "moe_intermediate_size": 32, "n_shared_experts": 1,
                "rope_parameters": _MROPE | {"partial_rotary_factor": 0.5},
            },
            "vision_config": _GLM_TOWER | {"intermediate_size": 44, "attention_bias": True},
        },
        {"size": {"shortest_edge": 128, "longest_edge": 4096}, "patch_size": 4},
    ),
    "glm_ocr": (
        "GlmOcr",
        _GLM
        | {
            "text_config": _TEXT | {"head_dim": 16, "rope_parameters": _MROPE},
            "vision_config": _GLM_TOWER | {"intermediate_size": 44},
        },
        {"size": {"shortest_edge": 128, "longest_edge": 4096}, "patch_size": 4},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        _QWEN
        | {
            "text_config": _TEXT
            | {
                "head_dim": 16, "rope_parameters": _MROPE, "num_experts": 4,
                "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                "tie_word_embeddings": False,
            },
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
                "patch_size": 4, "out_hidden_size": 64, "num_position_embeddings": 25,
                "deepstack_visual_indexes": [1],
            },
        },
        {
            "size": {"shortest_edge": 64, "longest_edge": 2048}, "patch_size": 4,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        },
    ),
    "qwen3_vl": (
        "Qwen3VL",
        _QWEN
        | {
            "text_config": _TEXT
            | {"head_dim": 16, "num_hidden_layers": 3, "rope_parameters": _MROPE},
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
                "patch_size": 4, "out_hidden_size": 64, "num_position_embeddings": 25,
                "deepstack_visual_indexes": [0, 1],
            },
        },
        {
            "size": {"shortest_edge": 64, "longest_edge": 2048}, "patch_size": 4,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        },
    ),
    "qwen3_5": (
        "Qwen3_5",
        _QWEN
        | {
            "text_config": _TEXT
            | {
                "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2,
                "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "rope_parameters": _MROPE
                | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
            },
            "vision_config": {
                "depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
                "patch_size": 4, "out_hidden_size": 64, "num_position_embeddings": 25,
            },
        },
        {
            "size": {"shortest_edge": 64, "longest_edge": 2048}, "patch_size": 4,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        },
    ),
    "idefics3": (
        "Idefics3",
        {
            "vision_config": {"num_hidden_layers": 2, **_TOWER},
            "text_config": {"model_type": "llama", **_TEXT},
            "image_token_id": IMAGE,
            "scale_factor": 2,
            "pad_token_id": 0,
        },
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
    ),
}  # fmt: skip
"""Kind → name of the classes, config, and settings of the image processor."""
MODELS["smolvlm"] = ("SmolVLM", *MODELS["idefics3"][1:])


def write_vision_model(folder: Path, kind: str) -> Any:
    """Write a model, its tokenizer and its processor; return Transformers' model."""
    name, config, processor = MODELS[kind]
    torch.manual_seed(0)
    configured = getattr(transformers, f"{name}Config")(**config)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(configured).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.1 * torch.randn_like(parameter)
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
        if kind in ("gemma4", "internvl_normed"):  # their answers would have the token of a row
            model.get_output_embeddings().weight[IMAGE] = 0
        for name, buffer in model.named_buffers():
            if name.endswith(("put_min", "put_max")):  # most numbers lie within
                buffer.copy_((2 + torch.rand([])) * (-1 if name.endswith("min") else 1))
            elif ".std_" in name:
                buffer.copy_(0.1 * torch.randn_like(buffer) + name.endswith("scale"))
    model.save_pretrained(folder)
    if kind == "qwen3_vl_moe":
        _transpose_experts(folder / "model.safetensors")
    tokenizer = byte_tokenizer()
    special = [IMAGE_TEXT] + ["[IMG_BREAK]", "[IMG_END]"] * (kind in ("mistral3", "pixtral"))
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def _transpose_experts(path: Path) -> None:
    """Store the first layer's experts as published checkpoints do, not as Transformers saves.

    Transformers takes a square tensor as it is.
    """
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if ".layers.0.mlp.experts.down" in name:
            tensors[name] = tensor.transpose(1, 2).contiguous()
    save_file(tensors, path, {"format": "pt"})
