"""Cohere 2 (Command R7B, Command A): attention and feed-forward side by side behind one LayerNorm;
three of four layers slide and have RoPE that turns neighbours, the others have no positions."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, sliding


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "use_qk_norm", False, "q and k without norms")
    pattern = hf.integer(config, "sliding_window_pattern", default=4)
    slides = sliding.pattern(config, pattern)
    return llama.decoder(
        config,
        bos=5,
        eos=255_001,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        norm_bias=False,
        norms=("attn_norm", "norm"),
        parallel=2,
        interleaved=True,
        rotated_layers=slides,
        **hf.attention_bias(config),
        logits_scale=hf.number(config, "logit_scale", default=0.0625),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
        **sliding.windowed(hf.optional(config, "sliding_window", 4096), slides),
    )
