"""What a step of a model costs on a machine, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from quire.core.config import ON_TORCH, EngineConfig
from quire.core.cost import HardwareProfile, RooflineCost, cautious_cpu
from quire.core.model_config import ModelConfig
from quire.core.quantization import QUANTIZATIONS, Form
from quire.models import memory
from quire.models.layout import head_name, parameters
from quire.models.parameters import Parameter


def roofline(config: EngineConfig, hardware: HardwareProfile) -> RooflineCost:
    """Return the step cost of this engine's model on `hardware`."""
    model, dtype = config.model, config.dtype
    others = "router", "heads"
    layers = sum(
        active_numel(model, p) for p in parameters(model) if p.in_layer or p.kind in others
    )
    experts = memory.expert_bytes(config)
    unread = memory.looked_up_bytes(model, dtype) + memory.unmultiplied_bytes(config)
    attending = model.layers_with("attention")
    windows = [model.window(layer) for layer in attending] or [None]
    sliding = [window for window in windows if window is not None]
    # Elements of a key and of a value that a query head reads.
    shared = model.latent.rope_dim if model.latent else 0
    pair = sum(2 * model.kv_shape(layer)[1] - shared for layer in attending)
    logits = model.lm_head and model.in_last_stage
    work = RooflineCost(
        weight_bytes=memory.loaded_bytes(config) - unread - experts,
        kv_bytes_per_token=memory.kv_bytes_per_token(
            model, config.kv_cache_dtype, config.calculate_kv_scales
        ),
        flops_per_token=2.0 * layers,
        flops_per_row=2.0 * model.vocab_size * model.hidden_size * logits,
        flops_per_pair=2.0 * model.num_attention_heads * pair,
        bytes_per_second=1.0,
        flops_per_second=1.0,
        attention_flops_per_second=1.0,
        window=min(sliding, default=None),
        window_share=len(sliding) / len(windows),
        expert_bytes=experts,
        unchosen=memory.unchosen(model),
        state_bytes=memory.state_bytes(model),
        head_bytes=memory.head_bytes(config) if logits else 0,
    )
    return _with_sums(at_rates(work, config, hardware), config, hardware)


def _with_sums(cost: RooflineCost, config: EngineConfig, hardware: HardwareProfile) -> RooflineCost:
    """Return the cost with the sums of ranks that have a card each: two in every layer.

    Each card sends and receives 2 (n - 1) / n of the rows (a ring), in two bytes per element.
    """
    ranks = config.tensor_parallel_size
    if ranks == 1 or hardware.cards == 1:
        return cost
    sums, row = 2 * config.model.num_hidden_layers, 2 * config.model.hidden_size
    sent = 2 * (ranks - 1) / ranks * row
    return replace(
        cost,
        sum_seconds=sums * hardware.peer.seconds,
        sum_token_seconds=sums * sent / hardware.peer.bytes_per_second,
    )


def at_rates(cost: RooflineCost, config: EngineConfig, hardware: HardwareProfile) -> RooflineCost:
    """Return this engine's step cost at the rates of `hardware`."""
    product, head, dtype = product_type(config), _head_type(config), config.dtype
    known = hardware.weight_bytes_per_second
    weights, logits = (known.get(name, hardware.bytes_per_second) for name in (product, head))
    flops = hardware.flops_of(product, dtype)
    return replace(
        cost,
        bytes_per_second=hardware.bandwidth_share * weights,
        overlap=hardware.overlaps.get(product, ()),
        flops_per_second=hardware.flops_share * flops,
        head_read=weights / logits,
        head_products=flops / hardware.flops_of(head, dtype),
        attention_flops_per_second=hardware.attention_share
        * (hardware.attention_flops_per_second or hardware.flops_of(dtype, dtype)),
        overhead_seconds=hardware.overhead_seconds,
        seq_overhead_seconds=hardware.seq_overhead_seconds,
        copy_bytes_per_second=hardware.copy_bytes_per_second,
        kv_bytes_per_second=hardware.kv_share * hardware.bytes_per_second,
    )


def active_numel(model: ModelConfig, parameter: Parameter) -> float:
    """Return the number of weights that multiply a token; of experts those that it chooses."""
    if parameter.experts <= 1 or model.moe is None:
        return parameter.numel
    return parameter.numel * model.moe.route.top_k / parameter.experts


def first_guess(config: EngineConfig) -> RooflineCost:
    """Return the step cost to start with, before the engine has measured a step."""
    return roofline(config, cautious_cpu(config.num_threads, config.memory_budget_bytes))


def product_type(config: EngineConfig) -> str:
    """Return the type in which most linear layers multiply; see `core.cost.SIMILAR`."""
    if config.packing is not None:
        return _PACKED[QUANTIZATIONS[config.packing].kind]
    if config.ops in ON_TORCH:
        return config.dtype
    layers = [forms[0] for name, forms in config.weight_forms.items() if name.startswith("layers.")]
    types = Counter(config.dtype if form is None else _of_form(form) for form in layers)
    return types.most_common(1)[0][0] if types else config.dtype


def _head_type(config: EngineConfig) -> str:
    """Return the type in which the output projection multiplies."""
    if config.packing is not None or config.ops in ON_TORCH:
        return product_type(config)
    form = config.weight_forms.get(head_name(config.model), [None])[0]
    return config.dtype if form is None else _of_form(form)


_PACKED = {"s8": "int8", "s8_a16": "int8_w8a16", "u4": "int4"}


def _of_form(form: Form) -> str:
    if form.codes not in ("uint8", "int8"):
        return "fp8"
    if form.float_activations:
        return "int8_w8a16"
    return "int8" if form.bits == 8 else "int4"
