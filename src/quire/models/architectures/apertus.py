"""Apertus: Llama with a plain xIELU feed-forward, and a norm over each head of q and k."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, nemotron

NAMES = nemotron.NAMES.but(
    {
        "attn_norm": ("attention_layernorm",),
        "mlp_norm": ("feedforward_layernorm",),
        "mlp.xielu.positive": ("mlp.act_fn.alpha_p",),
        "mlp.xielu.negative": ("mlp.act_fn.alpha_n",),
        "mlp.xielu.linear": ("mlp.act_fn.beta",),
    },
    # Below 0 and above this number, exp(x) - 1 counts as this number.
    ignored=rf"{nemotron.NAMES.ignored}|.*\.act_fn\.eps",
)
_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""Where the config does not say."""


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "hidden_act", "xielu", "Apertus's")
    hf.only(config, "mlp_bias", False, "feed-forwards without biases")
    if not config.get("rope_scaling") and config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _ROPE}
    return llama.decoder(
        config,
        norm_eps=1e-5,
        theta=12_000_000.0,
        bos=1,
        eos=2,
        qk_norm="head",
        activation="relu2",
        xielu=True,
        **hf.attention_bias(config),
    )
