"""nanochat: norms without weights, also behind RoPE and the embeddings, RoPE that turns backwards,
and a plain relu² feed-forward."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gemma2, llama

NAMES = llama.NAMES.but({"mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    model = llama.decoder(
        config,
        bos=0,
        eos=1,
        norms=("embed_norm", "attn_norm", "mlp_norm", "norm"),
        norm_weights=False,
        qk_norm="unit",
        activation=hf.plain_activation(config, "hidden_act", "relu2"),
        logits_softcap=gemma2.softcap(config, "final_logit_softcapping", 15.0),
        **hf.attention_bias(config),
    )
    assert model.rope is not None
    return replace(model, rope=replace(model.rope, backwards=True))
