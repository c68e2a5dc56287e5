"""ERNIE 4.5 with experts: a softmax of all experts, with a bias for the choice alone."""

from __future__ import annotations

from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        **experts.names("mlp"),
        **experts.shared("mlp.shared_experts"),
        "mlp.router.correction": ("mlp.moe_statics.e_score_correction_bias",),
    },
    stacked=experts.STACKED,
    ignored=rf"{llama.NAMES.ignored}|.*mtp.*",  # layers that predict a second token
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "use_bias", False, "layers without biases")
    width = hf.integer(config, "moe_intermediate_size", default=1536)
    top_k = hf.integer(config, "num_experts_per_tok", "moe_k", default=6)
    return llama.decoder(
        config,
        norm_eps=1e-5,
        kv_heads=4,
        bos=1,
        eos=2,
        theta=500_000.0,
        interleaved=True,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
        moe=experts.moe(
            config,
            ("num_experts", "moe_num_experts"),
            64,
            RouteSpec(top_k, least=hf.number(config, "moe_norm_min", default=1e-12)),
            width=width,
            layers=_sparse(config),
            correction=True,
            shared_size=width * hf.whole(config, "moe_num_shared_experts", 2),
        ),
    )


def _sparse(config: hf.HFConfig) -> tuple[bool, ...]:
    """Return which layers have experts: every `moe_layer_interval`-th, from start to end."""
    layers = hf.integer(config, "num_hidden_layers")
    step = hf.integer(config, "moe_layer_interval", default=1)
    begin, end = hf.whole(config, "moe_layer_start_index", 1), layers
    if config.get("moe_layer_end_index", -1) != -1:
        end = hf.whole(config, "moe_layer_end_index", layers) + 1
    return tuple(begin <= i < end and (i + 1) % step == 0 for i in range(layers))
