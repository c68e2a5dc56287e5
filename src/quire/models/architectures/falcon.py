"""Falcon (7B, 11B, 40B, 180B): attention and feed-forward side by side behind one LayerNorm or two,
and keys and values that heads share."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gpt_neox, llama

_BLOCK = "self_attention"
NAMES = gpt_neox.NAMES.but(
    {"attn.qkv": (f"{_BLOCK}.query_key_value",), "attn.out": (f"{_BLOCK}.dense",)},
    {"embed": "transformer.word_embeddings", "norm": "transformer.ln_f"},
    layer_prefix="transformer.h.{}.",
    base_prefix="transformer.",
    # Norms that attention and feed-forward have each.
    apart={
        f"{name}_norm{end}": (f"ln_{name}{end}",)
        for name in ("attn", "mlp")
        for end in ("", ".bias")
    },
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "alibi", False, "RoPE")
    hidden = hf.integer(config, "hidden_size")
    heads = hf.integer(config, "num_attention_heads")
    newer = hf.flag(config, "new_decoder_architecture", default=False)
    shared = not newer and hf.flag(config, "multi_query", default=True)
    side_by_side = hf.flag(config, "parallel_attn", default=True)
    if newer:
        hf.only(config, "parallel_attn", True, "layers of this kind")
    elif not shared:
        hf.only(config, "num_kv_heads", heads, "a key for each query")
    norms = hf.integer(config, "num_ln_in_parallel_attn", default=1 + newer)
    if norms > 1 + newer:
        raise hf.unsupported("num_ln_in_parallel_attn", norms, "of this kind layers have fewer")
    own: dict[str, Any] = {
        **{name: value for name, value in config.items() if name != "head_dim"},
        "max_position_embeddings": hf.integer(config, "max_position_embeddings", default=2048),
        "num_key_value_heads": 1 if shared else hf.integer(config, "num_kv_heads", default=heads),
        "intermediate_size": hf.integer(config, "ffn_hidden_size", default=4 * hidden),
    }
    two = norms == 2 or not side_by_side
    return llama.decoder(
        own,
        bos=11,
        eos=11,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_epsilon", default=1e-5),
        norms=("attn_norm", *(("mlp_norm",) if two else ()), "norm"),
        parallel=2 if side_by_side else 1,
        parallel_norms=side_by_side and two,
        qkv_by_head=own["num_key_value_heads"] > 1,
        activation=hf.plain_activation(config, "activation", "gelu"),
        **hf.biases(hf.flag(config, "bias", default=False)),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
