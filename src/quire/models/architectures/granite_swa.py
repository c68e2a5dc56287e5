"""Granite with windows in three of four layers, attention sinks, and a base of RoPE per layer."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models.architectures import granite, llama, sliding

SINKS = {"attn.sinks": ("self_attn.sinks",)}
NAMES = llama.NAMES.but(SINKS)


def parse(config: hf.HFConfig) -> ModelConfig:
    model = granite.parse(
        config,
        kv_heads=4,
        norm_eps=1e-5,
        bos=100_257,
        eos=100_257,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
    return windowed(config, model)


def windowed(config: hf.HFConfig, model: ModelConfig) -> ModelConfig:
    """Return the model with the windows, sinks and bases that the config states."""
    layers = range(model.num_hidden_layers)
    slides = sliding.layer_types(config) or tuple(layer % 4 != 0 for layer in layers)
    window = sliding.windowed(hf.optional(config, "sliding_window", 128), slides)
    model = replace(model, attention_sinks=True, **window)
    thetas, rope = config.get("layer_rope_theta"), model.rope
    if thetas is None or rope is None:
        return model
    good = isinstance(thetas, list) and len(thetas) == len(layers)
    if not good or any(type(theta) not in (int, float) or theta < 0 for theta in thetas):
        raise hf.wrong("layer_rope_theta", thetas, f"a list of {len(layers)} numbers")

    def of(slide: bool) -> RopeConfig:
        """Return the RoPE of the layers that slide, or of the others; of base 0 they have none."""
        found = {
            theta for theta, each in zip(thetas, slides, strict=True) if theta and each == slide
        }
        if len(found) > 1:
            raise hf.unsupported(
                "layer_rope_theta", thetas, "Quire has one base for the layers that slide, and one"
                " for the others"
            )  # fmt: skip
        return replace(rope, theta=float(found.pop())) if found else rope

    rotated = tuple(theta != 0 for theta in thetas)
    return replace(model, rope=of(False), local_rope=of(True), rotated_layers=rotated)
