"""Falcon-H1: Mamba-2 and attention side by side in every layer, and factors of most results."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf, mamba2
from quire.models.architectures import bamba, llama

NAMES = bamba.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    layers = hf.integer(config, "num_hidden_layers")
    expanded = hf.integer(config, "mamba_expand", default=2) * hf.integer(config, "hidden_size")
    recurrent = mamba2.parse(
        config,
        inner=hf.optional(config, "mamba_d_ssm", 1024) or expanded,
        out_bias=hf.boolean(config, "projectors_bias", default=False),
        normed=hf.boolean(config, "mamba_rms_norm", default=False),
        norm_first=hf.flag(config, "mamba_norm_before_gate", default=True),
    )
    return llama.decoder(
        config,
        kv_heads=8,
        norm_eps=1e-5,
        bos=1,
        eos=2,
        **hf.attention_bias(config),
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
        recurrent=recurrent,
        parallel=2,
        sublayers=(("recurrent", "attention", "mlp"),) * layers,
        embedding_scale=hf.factor(config, "embedding_multiplier"),
        logits_scale=hf.factor(config, "lm_head_multiplier"),
        row_factors=_factors(config),
    )


def _factors(config: hf.HFConfig) -> dict[str, tuple[float, ...]]:
    """Return the factors of each linear layer's result; factors of its input are among them."""
    attention = _of_input(config, "attention_in_multiplier", "attention_bias")
    mamba = _of_input(config, "ssm_in_multiplier", "mamba_proj_bias")
    key = hf.number(config, "key_multiplier", default=1.0)
    gate, down = _list(config, "mlp_multipliers", 2)
    found = {
        "attn.qkv": (attention, attention * key, attention),
        "attn.out": (hf.number(config, "attention_out_multiplier", default=1.0),),
        "recurrent.in": tuple(mamba * each for each in _list(config, "ssm_multipliers", 5)),
        "recurrent.out": (hf.number(config, "ssm_out_multiplier", default=1.0),),
        "mlp.gate_up": (gate, 1.0),
        "mlp.down": (down,),
    }
    return {stem: factors for stem, factors in found.items() if set(factors) != {1.0}}


def _of_input(config: hf.HFConfig, name: str, bias: str) -> float:
    """Return a factor of a linear layer's input, if it has no bias: else it is none of the result.

    Raises:
        UnsupportedModelError: it has one.
    """
    factor = hf.number(config, name, default=1.0)
    if factor != 1.0:
        hf.only(config, bias, False, f"with {name} {factor}")
    return factor


def _list(config: hf.HFConfig, name: str, count: int) -> list[float]:
    found: Any = config.get(name)
    if found is None:
        return [1.0] * count
    if not isinstance(found, list) or len(found) != count:
        raise hf.wrong(name, found, f"a list of {count} numbers")
    return [hf.number({name: each}, name) for each in found]
