"""HyperCLOVA X: Granite with norms behind attention and feed-forward, too."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import granite, llama

NAMES = llama.NAMES.but({"attn_post_norm": ("post_norm1",), "mlp_post_norm": ("post_norm2",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    fields: dict[str, Any] = {"logits_scale": hf.factor(config, "logits_scaling")}
    if hf.boolean(config, "use_post_norm", default=True):
        fields["norms"] = "attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "norm"
    if config.get("attention_multiplier") is None:
        fields["attention_scale"] = None
    return granite.parse(config, **fields)
