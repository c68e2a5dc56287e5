"""GPT-J: attention and feed-forward side by side behind one LayerNorm, and RoPE that turns
neighbours in a part of each head."""

from __future__ import annotations

from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models.architectures import gpt2
from quire.models.rope import DEFAULT_THETA

NAMES = gpt2.NAMES.but(
    {
        "attn.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        "attn.out": ("attn.out_proj",),
        "mlp.up": ("mlp.fc_in",),
        "mlp.down": ("mlp.fc_out",),
    },
    transposed=frozenset(),
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "tie_word_embeddings", False, "a head with a bias of its own")
    rotary = hf.integer(config, "rotary_dim", default=64)
    model = gpt2.parse(
        config,
        rope=RopeConfig(DEFAULT_THETA, rotary, interleaved=True),
        learned_positions_offset=None,
        parallel=2,
        norms=("attn_norm", "norm"),
        qkv_bias=False,
        output_bias=False,
        lm_head_bias=True,
        tie_word_embeddings=False,
    )
    if rotary % 2 or rotary > model.head_dim:
        raise CheckpointError(
            f"config.json: rotary_dim is {rotary}; heads have {model.head_dim} elements, of which "
            "pairs turn.",
            param="rotary_dim",
        )
    return model
