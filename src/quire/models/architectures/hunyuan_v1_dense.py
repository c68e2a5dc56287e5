"""HunYuan (dense): Llama with a norm over each head of q and k behind RoPE."""

from __future__ import annotations

from typing import Any

from quire.core.errors import UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {"attn.q_norm": ("self_attn.query_layernorm",), "attn.k_norm": ("self_attn.key_layernorm",)}
)


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are those of the model with experts."""
    head_dim = hf.shape(config, hf.optional(config, "head_dim", None))["head_dim"]
    model = llama.decoder(
        {**config, **_stretched(config, head_dim)},
        norm_eps=1e-5,
        bos=1,
        eos=2,
        qk_norm="rotated",
        **hf.attention_bias(config),
        **differences,
    )
    if model.rope is not None and model.rope.scaling in ("yarn", "longrope"):
        # They scale the cosines, which the norms behind RoPE undo.
        raise UnsupportedModelError(
            f"config.json: RoPE scaling {model.rope.scaling!r} is not known of HunYuan.",
            param="rope_scaling",
        )
    return model


def _stretched(config: hf.HFConfig, head_dim: int) -> dict[str, Any]:
    """RoPE's fields where they say "dynamic" with an `alpha`: a larger base at every length."""
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    params = hf.table(config, field)
    kind = params.get("rope_type", params.get("type"))
    if kind != "dynamic" or not params.get("alpha") or head_dim < 4:
        return {}
    theta = hf.number({**config, **params}, "rope_theta", default=10_000.0)
    alpha = hf.number(params, "alpha")
    plain = {"rope_type": "default", "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}
    return {"rope_scaling": None, "rope_theta": None, "rope_parameters": plain}
