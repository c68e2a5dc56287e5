"""A tower as data: the model that its layers are, and all its parameters; torch-free."""

from __future__ import annotations

from functools import lru_cache

from quire.core.config import EngineConfig
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models.layout import Layout
from quire.models.parameters import Parameter
from quire.models.specs import LinearSpec, NormSpec


def tower_model(vision: VisionConfig) -> ModelConfig:
    """Return the tower's layers as a model that attends both ways and has no embeddings."""
    optional = {"embed_norm": vision.embed_norm, "norm": vision.final_norm}
    windows = tuple(i not in vision.full_layers for i in range(vision.num_layers))
    return ModelConfig(
        architecture=vision.kind,
        vocab_size=0,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_hidden_layers=vision.num_layers,
        num_attention_heads=vision.num_heads,
        num_key_value_heads=vision.num_heads,
        head_dim=vision.hidden_size // vision.num_heads,
        max_position_embeddings=1,
        norm=vision.norm,
        norm_eps=vision.norm_eps,
        norms=("attn_norm", "mlp_norm", *(name for name, there in optional.items() if there)),
        activation=vision.activation,
        qkv_bias=vision.qkv_bias,
        output_bias=vision.output_bias,
        mlp_bias=vision.mlp_bias,
        sliding_window=vision.window or None,
        sliding_layers=windows if vision.window else None,
        causal=False,
        lm_head=False,
    )


def connector(vision: VisionConfig) -> list[LinearSpec]:
    """Return the products behind the layers."""
    return _products(vision, "connector")


def deep_connectors(vision: VisionConfig) -> list[list[LinearSpec]]:
    """Return the products of each deep layer, which are like those behind the layers."""
    return [_products(vision, f"deep.{i}") for i in range(len(vision.deep_layers))]


def _products(vision: VisionConfig, stem: str) -> list[LinearSpec]:
    found, columns = [], vision.hidden_size * vision.row_patches
    for i, (rows, activation) in enumerate(vision.connector):
        kind = None if activation == "none" else activation
        found.append(
            LinearSpec(f"{stem}.{i}", (rows,), columns, vision.connector_bias, activation=kind)
        )
        columns = rows
    return found


def pool_linears(vision: VisionConfig) -> list[LinearSpec]:
    """Return the products of `attention_pool`, in order."""
    hidden, inner = vision.hidden_size, vision.intermediate_size
    return [
        LinearSpec("pool.qkv", (hidden,) * 3, hidden, True),
        LinearSpec("pool.out", (hidden,), hidden, True),
        LinearSpec("pool.up", (inner,), hidden, True, activation=vision.activation),
        LinearSpec("pool.down", (hidden,), inner, True),
    ]


@lru_cache(maxsize=8)
def tower_parameters(vision: VisionConfig) -> tuple[Parameter, ...]:
    """Return all parameters of the tower, in the order of the computation."""
    hidden, side = vision.hidden_size, vision.patch_size
    frames = (vision.frames,) if vision.frames > 1 else ()
    found = [Parameter("patch.weight", (hidden, 3, *frames, side, side), (hidden,), "table")]
    if vision.patch_bias:
        found.append(Parameter("patch.bias", (hidden,), (hidden,), "bias"))
    if vision.class_token:
        shape: tuple[int, ...] = (1, 1, hidden) if vision.boxed else (hidden,)
        found.append(Parameter("class.weight", shape, shape[:1], "bias"))
    if rows := vision.learned_positions:
        shape = (1, rows, hidden) if vision.boxed else (rows, hidden)
        found.append(Parameter("positions.weight", shape, shape[:1], "table"))
    found += Layout(tower_model(vision)).parameters()
    if vision.layer_scale:
        for i in range(vision.num_layers):
            for stem in ("attn_scale", "mlp_scale"):
                found.append(Parameter(f"layers.{i}.{stem}.weight", (hidden,), (hidden,), "bias"))
    if vision.pool == "attention":
        found.append(Parameter("pool.probe.weight", (1, 1, hidden), (1,), "bias"))
        found += NormSpec("pool.norm", hidden, bias=True).parameters()
        for linear in pool_linears(vision):
            found += linear.parameters()
    if vision.connector_norm is not None:
        width = hidden if vision.connector_norm == "rms" else hidden * vision.row_patches
        for kind in ("weight",) if vision.connector_norm == "rms" else ("weight", "bias"):
            found.append(Parameter(f"connector_norm.{kind}", (width,), (width,), "bias"))
    for linear in connector(vision):
        found += linear.parameters()
    if vision.resolutions:
        rows = vision.connector[-1][0]
        found.append(Parameter("newline.weight", (rows,), (rows,), "bias"))
    wide = hidden * vision.row_patches
    for i, linears in enumerate(deep_connectors(vision)):
        for kind in ("weight", "bias"):
            found.append(Parameter(f"deep.{i}.norm.{kind}", (wide,), (wide,), "bias"))
        for linear in linears:
            found += linear.parameters()
    return tuple(found)


def tower_activation_bytes(config: EngineConfig) -> int:
    """Return the bytes of reading the largest image, as if all were float32; 0 without a tower."""
    vision, images = config.model.vision, config.images
    if vision is None or images is None:
        return 0
    edge = images.longest_edge**2 if vision.line_ends else images.longest_edge
    pixels = images.crop**2 or edge
    patches = pixels // vision.patch_size**2 + 1
    # A patch and its copies; the residual stream, q, k, v, keys and values in the cache.
    patch = 3 * vision.patch_values + 10 * vision.hidden_size + 3 * vision.intermediate_size
    return 4 * patches * patch


def tower_bytes(config: EngineConfig) -> int:
    """Return the bytes of an engine's tower, whose weights are never quantized; 0 without one."""
    if config.model.vision is None or config.images is None:
        return 0
    item = 4 if config.dtype == "float32" else 2
    return item * sum(p.numel for p in tower_parameters(config.model.vision))
