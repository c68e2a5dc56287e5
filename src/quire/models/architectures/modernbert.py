"""ModernBERT: an encoder with norms before its layers, RoPE, gated feed-forwards, and local layers
between those that attend to all."""

from __future__ import annotations

from quire.core.errors import UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architecture import WeightNames
from quire.models.architectures import sliding

NAMES = WeightNames(
    top={
        "embed": "model.embeddings.tok_embeddings",
        "embed_norm": "model.embeddings.norm",
        "norm": "model.final_norm",
        "head.dense": "model.head.dense",
        "head.norm": "model.head.norm",
        "head.out": "model.classifier",
    },
    layer={
        "attn_norm": ("attn_norm",),
        "attn.qkv": ("attn.Wqkv",),
        "attn.out": ("attn.Wo",),
        "mlp_norm": ("mlp_norm",),
        "mlp.gate_up": ("mlp.Wi",),
        "mlp.down": ("mlp.Wo",),
    },
    layer_prefix="model.layers.{}.",
    base_prefix="model.",
    ignored=r"(model\.)?(head|decoder|classifier)\b.*",
)
_THETAS = {
    ropes.FULL: ("global_rope_theta", 160_000.0),
    ropes.SLIDING: ("local_rope_theta", ropes.DEFAULT_THETA),
}


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "sliding_window", None, "the window of local_attention")
    shape = hf.shape(config)
    layers, head_dim = shape["num_hidden_layers"], shape["head_dim"]
    slides = sliding.layer_types(config)
    if slides is None:
        every = hf.integer(config, "global_attn_every_n_layers", default=3)
        slides = tuple(layer % every != 0 for layer in range(layers))
    reach = hf.integer(config, "local_attention", default=128) // 2  # to either side
    positions = shape["max_position_embeddings"]
    rope, local_rope = ropes.ropes(
        config, head_dim, positions, thetas=_THETAS, scaled=(ropes.FULL, ropes.SLIDING)
    )
    activation = hf.activation(config, "hidden_activation", "gelu")
    classifier = hf.activation(config, "classifier_activation", "gelu")
    if activation not in hf.GATED or classifier == "silu":
        field = "classifier_activation" if activation in hf.GATED else "hidden_activation"
        raise UnsupportedModelError(
            f"config.json: {field} is {config.get(field)!r}, which is not known of ModernBERT.",
            param=field,
        )
    return ModelConfig(
        **shape,
        norm="layer_norm",
        norm_eps=hf.number(config, "norm_eps", default=1e-5),
        norm_bias=hf.boolean(config, "norm_bias", default=False),
        activation=hf.GATED[activation],
        rope=rope,
        local_rope=local_rope,
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
        **sliding.windowed(reach + 1, slides),
        norms=("embed_norm", "attn_norm", "mlp_norm", "norm", "head.norm"),
        missing_norms=("layers.0.attn_norm",),
        causal=False,
        lm_head=False,
        classifier_activation=classifier,
        classifier_bias=hf.boolean(config, "classifier_bias", default=False),
    )
