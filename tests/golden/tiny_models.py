"""Small random models, made by Transformers and saved as real checkpoints are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 256
ONE_PLUS = frozenset({
    "gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
})  # fmt: skip
"""Model types whose norms multiply by 1 + weight."""
MAX_POSITIONS = 512

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_GATED: dict[str, Any] = _BASE | {"intermediate_size": 80, "num_key_value_heads": 2}


_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
}


_DELTA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}


_MAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
}


@dataclass(frozen=True)
class TinyModel:
    """A model type of Transformers and its changes to the common small config."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        base = _BASE if self.model_type in ("gpt2", "opt") else _GATED
        return base | self.changes


def _rope(**params: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **params}}


TINY_MODELS: dict[str, TinyModel] = {
    "llama": TinyModel("llama"),
    "llama-mha-tied-biases": TinyModel(
        "llama",
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    # A head size that is no multiple of 8 has a kernel of its own.
    "llama-mqa-head-dim": TinyModel("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-rope-llama3": TinyModel(
        "llama",
        _rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama-rope-linear": TinyModel("llama", _rope(rope_type="linear", factor=2.0)),
    "llama-rope-yarn": TinyModel(
        "llama", _rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64)
    ),
    "qwen2": TinyModel("qwen2"),
    "qwen2-sliding-tied": TinyModel(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 1,
        },
    ),
    "qwen3": TinyModel("qwen3", {"head_dim": 40}),
    "qwen3-mha-tied-biases": TinyModel(
        "qwen3",
        {
            "head_dim": 16,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "mistral": TinyModel("mistral", {"sliding_window": None}),
    "mistral-sliding": TinyModel("mistral", {"sliding_window": 24}),
    "phi3": TinyModel("phi3", {"sliding_window": 30, "head_dim": 24}),
    "phi3-longrope": TinyModel(
        "phi3",
        {"tie_word_embeddings": True, "original_max_position_embeddings": 64}
        | _rope(
            rope_type="longrope",
            short_factor=[1.0, 1.1, 1.3, 1.4, 1.6, 1.9, 2.1, 2.2],
            long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 9.0, 9.5],
        ),
    ),
    "gemma": TinyModel("gemma", {"head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": TinyModel(
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 20,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gemma2-uncapped": TinyModel(
        "gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": TinyModel(
        "gemma3_text",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "olmo2": TinyModel("olmo2", {"rms_norm_eps": 0.01}),
    "olmo2-mha-tied": TinyModel("olmo2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "starcoder2": TinyModel("starcoder2", {"sliding_window": 20}),
    "starcoder2-no-biases": TinyModel(
        "starcoder2", {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu"}
    ),
    "stablelm": TinyModel("stablelm", {"head_dim": 16}),
    "stablelm-biases": TinyModel("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "qwen3-moe": TinyModel(
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-some-dense": TinyModel(
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "mlp_only_layers": [3],
            "decoder_sparse_step": 2,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "qwen2-moe": TinyModel(
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "mixtral": TinyModel("mixtral", {"num_local_experts": 4, "sliding_window": 24}),
    "olmoe": TinyModel("olmoe", {"num_experts": 8, "num_experts_per_tok": 4}),
    "smollm3": TinyModel("smollm3", {"num_hidden_layers": 4, "tie_word_embeddings": False}),
    "smollm3-sliding": TinyModel(
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 20, "no_rope_layers": [1, 0]},
    ),
    "granite": TinyModel(
        "granite",
        {
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
            "logits_scaling": 1.7,
        },
    ),
    "granite4": TinyModel(
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "layer_types": ["full_attention"] * 2,
            "position_embedding_type": "rope",
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
        },
    ),
    "granite4-no-positions": TinyModel(
        "granitemoehybrid", {"num_local_experts": 0, "layer_types": ["full_attention"] * 2}
    ),
    "seed_oss": TinyModel("seed_oss", {"head_dim": 24}),
    "olmo3": TinyModel(
        "olmo3",
        {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    # Null would be GLM-4's own end tokens, which are beyond this vocabulary.
    "glm4": TinyModel("glm4", {"head_dim": 16, "eos_token_id": 0}),
    "exaone4": TinyModel(
        "exaone4",
        {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "exaone4-full": TinyModel(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    ),
    "cohere2": TinyModel(
        "cohere2", {"num_hidden_layers": 4, "sliding_window": 20, "logit_scale": 0.7}
    ),
    "hunyuan": TinyModel(
        "hunyuan_v1_dense",
        {"head_dim": 16, **_rope(rope_type="dynamic", factor=1.0, alpha=50.0)},
    ),
    # Queries grow from position 32 on.
    "ministral3": TinyModel(
        "ministral3",
        {
            "head_dim": 16,
            **_rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=32,
                llama_4_scaling_beta=0.4,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "nemotron": TinyModel("nemotron", {"num_key_value_heads": 2}),
    "phi4-mini": TinyModel(
        "phi3",
        {
            "sliding_window": None,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.3, 1.4, 1.6, 1.9],
                "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
            },
        },
    ),
    # Phi-4 has Phi-3's layers, and neither window nor scaled RoPE.
    "phi4": TinyModel(
        "phi3", {"num_key_value_heads": 1, "sliding_window": None, **_rope(rope_theta=250000.0)}
    ),
    "bitnet": TinyModel("bitnet"),
    "bitnet-tied": TinyModel("bitnet", {"tie_word_embeddings": True}),
    "bitnet-biased-silu": TinyModel(
        "bitnet", {"attention_bias": True, "hidden_act": "silu", "tie_word_embeddings": True}
    ),
    "falcon3": TinyModel("llama", {"head_dim": 32, **_rope(rope_theta=1000042.0)}),
    "ernie4_5": TinyModel("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "internlm3": TinyModel("internlm3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "glm4-moe": TinyModel(
        "glm4_moe",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "ernie4_5-moe": TinyModel(
        "ernie4_5_moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
        },
    ),
    "gpt-oss": TinyModel(
        "gpt_oss",
        {
            "head_dim": 16,
            "intermediate_size": 96,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 24,
            **_rope(
                rope_type="yarn", factor=8.0, original_max_position_embeddings=64, truncate=False
            ),
        },
    ),
    # Chunks and positions that the golden sequence passes more than once.
    "llama4": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 3,
            "no_rope_layer_interval": 3,
            "attention_chunk_size": 24,
            "floor_scale": 20,
        },
    ),
    # What GGUF files can say: the published models' layers.
    "llama4-published": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 4,
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
        },
    ),
    "llama4-chosen-layers": TinyModel(
        "llama4_text",
        {
            "head_dim": 16,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "moe_layers": [0],
            "no_rope_layers": [1, 0],
            "layer_types": ["full_attention", "chunked_attention"],
            "attention_chunk_size": 32,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_bias": True,
            **_rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        },
    ),
    "phimoe": TinyModel(
        "phimoe",
        {
            "num_local_experts": 6,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 24,
            "router_jitter_noise": 0.1,
        },
    ),
    "phimoe-longrope": TinyModel(
        "phimoe",
        {
            "attention_bias": True,
            "lm_head_bias": True,
            "original_max_position_embeddings": 512,
            **_rope(
                rope_type="longrope",
                short_factor=[1.0 + i / 3 for i in range(8)],
                long_factor=[9.0] * 8,
                short_mscale=1.2,
                long_mscale=1.2,
                original_max_position_embeddings=512,
            ),
        },
    ),
    "granitemoe": TinyModel(
        "granitemoe",
        {
            "num_local_experts": 6,
            "embedding_multiplier": 3.3,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.19,
            "logits_scaling": 1.7,
        },
    ),
    "deepseek-v2": TinyModel(
        "deepseek_v2",
        _LATENT
        | {
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            **_rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=64,
                mscale=0.707,
                mscale_all_dim=0.707,
            ),
        },
    ),
    # Widths that are no multiples of vectors.
    "deepseek-v3": TinyModel(
        "deepseek_v3",
        _LATENT
        | {
            "kv_lora_rank": 44,
            "qk_nope_head_dim": 12,
            "v_head_dim": 20,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            **_rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=64,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "deepseek-v3-biased": TinyModel(
        "deepseek_v3",
        _LATENT
        | {
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "glm4-moe-lite": TinyModel("glm4_moe_lite", _LATENT | {"num_experts_per_tok": 3}),
    "minicpm3": TinyModel("minicpm3", _LATENT | {"scale_depth": 1.4}),
    "gpt2": TinyModel("gpt2"),
    "opt": TinyModel("opt", {"ffn_dim": 96}),
    "opt-untied-gelu": TinyModel(
        "opt", {"ffn_dim": 96, "tie_word_embeddings": False, "activation_function": "gelu"}
    ),
}


# Apart from the others: Transformers computes a long prompt at once with the base for its whole
# length, so that only tokens generated one by one compare.
DYNAMIC_ROPE = TinyModel(
    "llama", {"max_position_embeddings": 48} | _rope(rope_type="dynamic", factor=2.0)
)


_PUBLISHED = {"internlm3": "InternLM3ForCausalLM"}
"""Model types that Transformers saves under another class than the published files have."""


def save_byte_tokenizer(folder: Path) -> None:
    """Save a tokenizer of single bytes, for the tiny models' vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


RECURRENT_MODELS: dict[str, TinyModel] = {
    "lfm2": TinyModel(
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2-biases": TinyModel(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "full_attn_idxs": [2],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_multiple_of": 16,
        },
    ),
    "qwen3-next": TinyModel(
        "qwen3_next",
        _DELTA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_5": TinyModel("qwen3_5_text", _DELTA | {"tie_word_embeddings": True}),
    "lfm2-moe": TinyModel(
        "lfm2_moe",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.3,
        },
    ),
    "qwen3_5-moe": TinyModel(
        "qwen3_5_moe_text",
        _DELTA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "granite4-hybrid": TinyModel(
        "granitemoehybrid",
        _MAMBA
        | {
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 96,
            "num_local_experts": 0,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 2.0,
        },
    ),
    "granite4-experts": TinyModel(
        "granitemoehybrid",
        _MAMBA
        | {
            "layer_types": ["attention", "mamba", "mamba"],
            "shared_intermediate_size": 96,
            "num_local_experts": 6,
            "intermediate_size": 32,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
        },
    ),
    "bamba": TinyModel(
        "bamba",
        _MAMBA
        | {
            "attn_layer_indices": [1],
            "mamba_n_groups": 2,
            "mamba_conv_bias": False,
        },
    ),
    "falcon-h1": TinyModel(
        "falcon_h1",
        _MAMBA
        | {
            "num_hidden_layers": 2,
            "mamba_d_ssm": 128,
            "mamba_n_groups": 2,
            "mamba_rms_norm": True,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.7,
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8,
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 0.7, 0.6, 1.3, 0.8],
            "mlp_multipliers": [0.85, 0.6],
        },
    ),
    "falcon-h1-biases": TinyModel(
        "falcon_h1",
        _MAMBA
        | {
            "num_hidden_layers": 2,
            "mamba_d_ssm": None,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "key_multiplier": 0.6,
            "ssm_multipliers": [0.9, 0.7, 0.6, 1.3, 0.8],
            "mlp_multipliers": [0.85, 0.6],
        },
    ),
    "nemotron-h": TinyModel(
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"] * 2,
            "head_dim": 24,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 24,
            "time_step_min": 0.2,
            "n_routed_experts": 8,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.5,
        },
    ),
    "mamba2": TinyModel(
        "mamba2",
        {
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 24,
            "n_groups": 2,
            "time_step_limit": [0.1, 0.9],
        },
    ),
}
"""Models with recurrent layers, which `test_recurrent` tests."""


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
    model.eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    if tiny.model_type in _PUBLISHED:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"architectures": [_PUBLISHED[tiny.model_type]]}
        path.write_text(json.dumps(config))
    return model
