"""GPT-NeoX (Pythia, Dolly): attention and feed-forward side by side, each behind a LayerNorm of its
own, biases, and a quarter of each head rotated."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.architectures import llama

NAMES = WeightNames(
    top={
        "embed": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
        "lm_head": "lm_head",
    },
    layer={
        "attn_norm": ("input_layernorm",),
        "attn.qkv": ("attention.query_key_value",),
        "attn.out": ("attention.dense",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.dense_h_to_4h",),
        "mlp.down": ("mlp.dense_4h_to_h",),
    },
    layer_prefix="gpt_neox.layers.{}.",
    base_prefix="gpt_neox.",
    # The causal mask and RoPE's table, which old files carry as buffers.
    ignored=r".*\.attention\.(?:masked_bias|bias|rotary_emb\.inv_freq)",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    heads = hf.integer(config, "num_attention_heads")
    hf.only(config, "num_key_value_heads", heads, "a key for each query")
    older = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    found = {name: config[old] for old, name in older.items() if config.get(old) is not None}
    side_by_side = hf.boolean(config, "use_parallel_residual", default=True)
    bias = hf.boolean(config, "attention_bias", default=True)
    plain = {name: value for name, value in config.items() if name != "head_dim"}
    return llama.decoder(
        {**found, **plain},
        partial=0.25,
        bos=0,
        eos=2,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        parallel=2 if side_by_side else 1,
        parallel_norms=side_by_side,
        qkv_by_head=True,
        activation=hf.plain_activation(config, "hidden_act", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
    )
