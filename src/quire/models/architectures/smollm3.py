"""SmolLM3: Llama without positions in every fourth layer."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, sliding


def parse(config: hf.HFConfig) -> ModelConfig:
    rotates = rotated(config)
    return llama.decoder(
        config,
        kv_heads=4,
        bos=128_000,
        eos=128_001,
        theta=2_000_000.0,
        rotated_layers=rotates,
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
        **sliding.upper_layers(config, lambda layer, _: not rotates[layer], window=None),
    )


def rotated(config: hf.HFConfig) -> tuple[bool, ...]:
    """Return which layers have positions."""
    layers = hf.integer(config, "num_hidden_layers")
    stated = config.get("no_rope_layers")
    if stated is None:
        interval = hf.integer(config, "no_rope_layer_interval", default=4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if not isinstance(stated, list) or len(stated) < layers or any(n not in (0, 1) for n in stated):
        raise hf.wrong("no_rope_layers", stated, f"a list of {layers} numbers, each 0 or 1")
    return tuple(number == 1 for number in stated[:layers])
