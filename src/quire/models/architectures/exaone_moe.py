"""K-EXAONE: EXAONE 4's attention behind plain norms, and DeepSeek-V3's experts."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import glm4_moe, llama, sliding

NAMES = glm4_moe.NAMES.but(
    {"mlp.router.correction": ("mlp.e_score_correction_bias",)},
    ignored=rf"{glm4_moe.NAMES.ignored}|mtp\..*",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    window = hf.optional(config, "sliding_window", 4096)
    period = None
    if window is not None and config.get("layer_types") is None:
        period = hf.integer(config, "sliding_window_pattern", default=4)
    slides = sliding.pattern(config, period)
    behind = experts.sparse_behind(config, 1)
    shared = hf.integer(config, "num_shared_experts", default=1)
    return llama.decoder(
        config,
        kv_heads=32,
        norm_eps=1e-5,
        bos=1,
        eos=53,
        qk_norm="head",
        rotated_layers=None if window is None else slides,
        **sliding.windowed(window, slides),
        moe=experts.moe(
            {**config, "n_shared_experts": shared},
            ("num_experts", "num_local_experts"),
            64,
            experts.grouped_route(config, 8, scale=2.5),
            width=1024,
            shared=1,
            layers=experts.sparse_by_types(config, behind),
            correction=True,
        ),
    )
