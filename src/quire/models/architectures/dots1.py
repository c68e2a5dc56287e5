"""dots.llm1: Qwen3's attention, and DeepSeek-V3's experts."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import glm4_moe, llama, sliding

NAMES = glm4_moe.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    window = hf.optional(config, "sliding_window", 4096)
    slides = sliding.layer_types(config)
    if slides is None:
        first = hf.whole(config, "max_window_layers", 62)
        layers = range(hf.integer(config, "num_hidden_layers"))
        slides = tuple(window is not None and i >= first for i in layers)
    return llama.decoder(
        config,
        kv_heads=32,
        qk_norm="head",
        **hf.attention_bias(config),
        **sliding.windowed(window, slides),
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            128,
            experts.grouped_route({"norm_topk_prob": False, **config}, 6),
            width=1408,
            shared=2,
            layers=experts.sparse_behind(config, 0),
            correction=True,
        ),
    )
