"""VaultGemma: Gemma 2 without the norms behind attention and feed-forward."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gemma, gemma2, llama

NAMES = llama.NAMES.but({"mlp_norm": ("pre_feedforward_layernorm",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    fields: dict[str, Any] = {
        **gemma2.later_gemma(config, pattern=2),
        "norms": ("attn_norm", "mlp_norm", "norm"),
        "attention_softcap": gemma2.softcap(config, "attn_logit_softcapping", 50.0),
        "logits_softcap": gemma2.softcap(config, "final_logit_softcapping", 30.0),
    }
    return gemma.parse(config, **fields)
