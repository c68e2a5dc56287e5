"""EXAONE 4: Llama with norms behind attention and feed-forward and over each head of q and k; where
some layers slide, the others have no positions."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, olmo2, sliding

NAMES = olmo2.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    window = hf.optional(config, "sliding_window", 4096)
    pattern = None
    if window is not None and config.get("layer_types") is None:
        pattern = hf.integer(config, "sliding_window_pattern", default=4)
    slides = sliding.pattern(config, pattern)
    return llama.decoder(
        config,
        kv_heads=32,
        norm_eps=1e-5,
        bos=0,
        eos=2,
        norms=("attn_post_norm", "mlp_post_norm", "norm"),
        qk_norm="head",
        rotated_layers=None if window is None else slides,
        **sliding.windowed(window, slides),
    )
