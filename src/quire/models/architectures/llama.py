"""Llama (1 to 3, TinyLlama and kin): the plain decoder that the others differ from."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architecture import WeightNames

NAMES = WeightNames(
    top={"embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"},
    layer={
        "attn_norm": ("input_layernorm",),
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.q_norm": ("self_attn.q_norm",),
        "attn.k_norm": ("self_attn.k_norm",),
        "attn.out": ("self_attn.o_proj",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
    },
    layer_prefix="model.layers.{}.",
    base_prefix="model.",
    ignored=r".*\.rotary_emb\.inv_freq",
)


def decoder(
    config: hf.HFConfig,
    *,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    norm_eps: float = 1e-6,
    partial: float | None = None,
    theta: float = ropes.DEFAULT_THETA,
    interleaved: bool = False,
    bos: int | None = None,
    eos: int | None = None,
    **differences: Any,
) -> ModelConfig:
    """Return the `ModelConfig` of a config.json.

    Args:
        head_dim, kv_heads, norm_eps, bos, eos: what absent fields mean (see `hf.heads`).
        partial, theta, interleaved: see `models.rope.rope`.
        differences: a sister architecture's fields.
    """
    if config.get("head_dim") is not None:
        head_dim = hf.integer(config, "head_dim")
    shape = hf.shape(config, head_dim, kv_heads)
    max_len = shape["max_position_embeddings"]
    if "rope" not in differences:
        differences["rope"] = ropes.rope(
            config, shape["head_dim"], max_len, partial=partial, theta=theta,
            interleaved=interleaved,
        )  # fmt: skip
    rope = differences["rope"]
    if "activation" not in differences and hf.activation(config, "hidden_act", "silu") != "silu":
        raise hf.unsupported("hidden_act", config["hidden_act"], "Quire gates with silu only")
    fields: dict[str, Any] = {
        "max_position_embeddings": max_len if rope is None else ropes.longest(rope, max_len),
        "norm_eps": hf.number(config, "rms_norm_eps", default=norm_eps),
        "tie_word_embeddings": hf.boolean(config, "tie_word_embeddings", default=False),
        "bos_token_id": hf.bos_token_id(config, bos),
        "eos_token_ids": hf.token_ids(config, "eos_token_id", eos),
    }
    return ModelConfig(**(shape | fields | differences))


def parse(config: hf.HFConfig) -> ModelConfig:
    """Return Llama's own `ModelConfig`; the config chooses its biases."""
    return decoder(
        config,
        bos=1,
        eos=2,
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
    )
