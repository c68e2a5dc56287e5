"""Gemma 3 (text): Gemma 2 without soft caps, with a norm over each head of q and k, five sliding
layers to each that attends to all, and a RoPE of their own for these five."""

from __future__ import annotations

from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architectures import gemma, gemma2

NAMES = gemma2.NAMES
_THETAS = {
    ropes.FULL: ("rope_theta", 1_000_000.0),
    ropes.SLIDING: ("rope_local_base_freq", ropes.DEFAULT_THETA),
}


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "attn_logit_softcapping", None, "scores without a cap")
    pattern = hf.integer(config, "sliding_window_pattern", default=6)
    rope, local_rope = _ropes(config)
    fields = gemma2.later_gemma(config, pattern)
    causal = not hf.flag(config, "use_bidirectional_attention", default=False)
    if not causal and "sliding_window" in fields:  # half of it lies to either side
        fields["sliding_window"] = fields["sliding_window"] // 2 + 1
    return gemma.parse(
        config,
        qk_norm="head",
        rope=rope,
        local_rope=local_rope,
        logits_softcap=gemma2.softcap(config, "final_logit_softcapping", None),
        causal=causal,
        **fields,
    )


def _ropes(config: hf.HFConfig) -> tuple[RopeConfig, RopeConfig]:
    """Return the RoPE of layers with full attention and of sliding layers, from old and new
    spellings.
    """
    return ropes.ropes(
        config,
        hf.integer(config, "head_dim", default=gemma.DEFAULT_HEAD_DIM),
        hf.integer(config, "max_position_embeddings"),
        thetas=_THETAS,
        scaled=(ropes.FULL,),
    )
