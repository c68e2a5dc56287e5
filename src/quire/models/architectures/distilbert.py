"""DistilBERT: BERT without token types; its classifier's first layer ends in a ReLU."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import bert


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.plain_activation(config, "activation", "gelu")  # an error names this field, not BERT's
    renamed = {
        "hidden_size": hf.integer(config, "dim", "hidden_size"),
        "num_attention_heads": hf.integer(config, "n_heads", "num_attention_heads"),
        "num_hidden_layers": hf.integer(config, "n_layers", "num_hidden_layers"),
        "intermediate_size": hf.integer(config, "hidden_dim"),
        "hidden_act": config.get("activation"),
    }
    return bert.parse({**config, **renamed}, token_types=0, classifier_activation="relu")


NAMES = replace(
    bert.names("distilbert", "pre_classifier", "classifier"),
    layer={
        "attn.qkv": tuple(f"attention.{name}_lin" for name in "qkv"),
        "attn.out": ("attention.out_lin",),
        "attn_sum_norm": ("sa_layer_norm",),
        "mlp.up": ("ffn.lin1",),
        "mlp.down": ("ffn.lin2",),
        "mlp_sum_norm": ("output_layer_norm",),
    },
    layer_prefix="distilbert.transformer.layer.{}.",
    ignored=r"(distilbert\.)?(pre_classifier|classifier|vocab_|qa_outputs|embeddings\.position_ids).*",
)
