"""OLMo 3: OLMo 2 with a window in three of four layers, whose RoPE is never scaled."""

from __future__ import annotations

from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architectures import olmo2, sliding

NAMES = olmo2.NAMES

_THETA = 500_000.0


def parse(config: hf.HFConfig) -> ModelConfig:
    rope, local_rope = _ropes(config)
    window = hf.optional(config, "sliding_window", 4096)
    return olmo2.decoder(
        config,
        rope=rope,
        local_rope=local_rope,
        **sliding.windowed(window, sliding.pattern(config, 4)),
    )


def _ropes(config: hf.HFConfig) -> tuple[RopeConfig, RopeConfig]:
    """Return the RoPE of layers with full attention and of sliding layers."""
    if "rope_theta" not in hf.table(hf.table(config, "rope_parameters"), ropes.SLIDING):
        # Transformers reads the top-level base for full attention only.
        hf.only(config, "rope_theta", _THETA, "one base for all layers")
    query, hidden = hf.integer(config, "num_attention_heads"), hf.integer(config, "hidden_size")
    head_dim = hf.integer(config, "head_dim", default=max(1, hidden // query))
    thetas = {ropes.FULL: ("rope_theta", _THETA), ropes.SLIDING: ("", _THETA)}
    max_len = hf.integer(config, "max_position_embeddings")
    return ropes.ropes(config, head_dim, max_len, thetas=thetas, scaled=(ropes.FULL,))
