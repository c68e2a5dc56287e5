"""gpt-oss: experts of a clamped SwiGLU with biases, and attention with sinks; every other layer
slides."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, sliding
from quire.models.weights.stacks import Stacked

NAMES = llama.NAMES.but(
    {**experts.names("mlp", "router"), "attn.sinks": ("self_attn.sinks",)},
    stacked={
        f"mlp.experts.{name}{ours}": Stacked(
            f"mlp.experts.{name}_proj{theirs}", transposed=not ours, interleaved=name == "gate_up"
        )
        for name in ("gate_up", "down")
        for ours, theirs in (("", ""), (".bias", "_bias"))
    },
)

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where the config does not say; Transformers' default."""


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "swiglu_alpha", 1.702, "the gate of gpt-oss")
    hf.only(config, "swiglu_limit", 7.0, "the gate of gpt-oss")
    if not config.get("rope_scaling") and not config.get("rope_parameters"):
        config = {**config, "rope_parameters": _YARN}
    return llama.decoder(
        config,
        head_dim=64,
        kv_heads=8,
        norm_eps=1e-5,
        norm_gain="float32",
        theta=150_000.0,
        activation="swigluoai_mul",
        attention_sinks=True,
        **hf.attention_bias(config, default=True),
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            128,
            experts.route(config, 4, renormalize=True),
            router_bias=True,
            bias=True,
        ),
        **sliding.windowed(hf.optional(config, "sliding_window", 128), sliding.pattern(config, 2)),
    )
