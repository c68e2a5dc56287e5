"""OPT: learned positions from row 2 on, LayerNorm before each layer, biases, a plain ReLU MLP.

opt-350m normalizes after each layer and projects its embeddings; it is refused.
"""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames

NAMES = WeightNames(
    top={
        "embed": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "norm": "model.decoder.final_layer_norm",
        "lm_head": "lm_head",
    },
    layer={
        "attn_norm": ("self_attn_layer_norm",),
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.out": ("self_attn.out_proj",),
        "mlp_norm": ("final_layer_norm",),
        "mlp.up": ("fc1",),
        "mlp.down": ("fc2",),
    },
    layer_prefix="model.decoder.layers.{}.",
    base_prefix="model.",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hidden_size = hf.integer(config, "hidden_size")
    hf.only(config, "do_layer_norm_before", True, "norms before each layer")
    hf.only(config, "word_embed_proj_dim", hidden_size, "embeddings as wide as the model")
    hf.only(config, "_remove_final_layer_norm", False, "a norm at the end")
    hf.only(config, "layer_norm_elementwise_affine", True, "norms with weights")
    bias = hf.boolean(config, "enable_bias", default=True)
    return ModelConfig(
        **hf.shape(config, inner="ffn_dim"),
        norm="layer_norm",
        norm_eps=1e-5,  # torch's default: OPT's config has no field for it
        activation=hf.plain_activation(config, "activation_function", "relu"),
        learned_positions_offset=2,
        **hf.biases(bias),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
        bos_token_id=hf.bos_token_id(config, 2),
        eos_token_ids=hf.token_ids(config, "eos_token_id", 2),
    )
