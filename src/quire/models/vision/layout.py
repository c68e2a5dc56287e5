"""A tower as data: the model that its layers are, and all its parameters; torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from quire.core.config import EngineConfig
from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models.layout import Layout
from quire.models.parameters import Parameter
from quire.models.specs import LinearSpec, NormSpec

CLIPPED = {
    "attn.qkv": ("attn.q", "attn.k", "attn.v"),
    "attn.out": ("attn.out",),
    "mlp.gate_up": ("mlp.gate", "mlp.up"),
    "mlp.down": ("mlp.down",),
}
"""Product of a tower with bounds (Gemma 4) → the parts that have bounds of their own."""
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def tower_model(vision: VisionConfig) -> ModelConfig:
    """Return the tower's layers as a model that attends both ways and has no embeddings."""
    optional = {"embed_norm": vision.embed_norm, "norm": vision.final_norm}
    optional |= dict.fromkeys(("attn_post_norm", "mlp_post_norm"), vision.post_norms)
    windows = tuple(i not in vision.full_layers for i in range(vision.num_layers))
    return ModelConfig(
        architecture=vision.kind,
        vocab_size=0,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_hidden_layers=vision.num_layers,
        num_attention_heads=vision.num_heads,
        num_key_value_heads=vision.kv_heads or vision.num_heads,
        head_dim=head_dim(vision),
        max_position_embeddings=1,
        norm=vision.norm,
        norm_eps=vision.norm_eps,
        norm_gain=vision.norm_gain,
        norms=("attn_norm", "mlp_norm", *(name for name, there in optional.items() if there)),
        activation=vision.activation,
        qkv_bias=vision.qkv_bias,
        qk_norm=vision.qk_norm,
        v_norm=vision.v_norm,
        attention_scale=vision.attention_scale,
        output_bias=vision.output_bias,
        mlp_bias=vision.mlp_bias,
        sliding_window=vision.window or None,
        sliding_layers=windows if vision.window else None,
        causal=False,
        lm_head=False,
    )


def head_dim(vision: VisionConfig) -> int:
    """Return the width of the tower's heads."""
    return vision.head_dim or vision.hidden_size // vision.num_heads


def patch_norm(vision: VisionConfig) -> NormSpec:
    """Return the norm of patches before their positions are added."""
    return NormSpec("patch.norm", vision.hidden_size, bias=vision.norm == "layer_norm")


def connectors(vision: VisionConfig) -> dict[str, tuple[Product, ...]]:
    """Return the products behind the layers, and those of each deep layer, by their stems.

    The latter are like the former, with a norm of each row.
    """
    found, (first, *others) = {"connector": vision.connector}, vision.connector or (None,)
    for i in range(len(vision.deep_layers)):
        assert first is not None
        deep = first._replace(norm="layer", eps=vision.norm_eps)
        found[f"deep.{i}"] = (deep, *others)
    return found


def products(
    vision: VisionConfig, stem: str, wanted: tuple[Product, ...]
) -> Iterator[tuple[Product, int, LinearSpec]]:
    """Yield products, the width of the norm in front of them, and their declarations."""
    columns = vision.row_values
    for i, product in enumerate(wanted):
        rows = product.rows
        gated = product.activation.endswith("_mul")
        linear = LinearSpec(
            f"{stem}.{i}",
            (rows,) * (1 + gated),
            columns,
            product.bias,
            activation=None if product.activation == "none" else product.activation,
            runs=((rows, rows), (0, rows)) if product.swapped else (),
        )
        yield product, columns if product.norm == "layer" else vision.hidden_size, linear
        columns = rows


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
    hidden = vision.hidden_size
    found = [Parameter("patch.weight", (hidden, vision.patch_values), (hidden,), "table")]
    if vision.patch_bias:
        found.append(_vector("patch.bias", hidden))
    if vision.patch_norm:
        found += patch_norm(vision).parameters()
    if vision.class_token:
        found.append(_vector("class.weight", hidden))
    if rows := vision.learned_positions:
        boxes = (2, rows // 2) if vision.positions == "axes" else (rows,)
        found.append(Parameter("positions.weight", (*boxes, hidden), boxes[:1], "table"))
    found += Layout(tower_model(vision)).parameters()
    if vision.clipped:
        found += _limits(vision.num_layers)
    if vision.standardized:
        found += (_vector(f"pooled.{name}.weight", hidden) for name in ("shift", "scale"))
    if vision.layer_scale:
        stems = ("attn_scale", "mlp_scale")
        layers = range(vision.num_layers)
        found += (_vector(f"layers.{i}.{stem}.weight", hidden) for i in layers for stem in stems)
    if vision.pool == "attention":
        found.append(_vector("pool.probe.weight", hidden))
        found += NormSpec("pool.norm", hidden, bias=True).parameters()
        for linear in pool_linears(vision):
            found += linear.parameters()
    for stem, wanted in connectors(vision).items():
        for product, width, linear in products(vision, stem, wanted):
            if product.norm not in (None, "unit"):
                norm = NormSpec(
                    f"{linear.stem}.norm", width, bias=product.norm in ("layer", "patch")
                )
                found += norm.parameters()
            found += linear.parameters()
    if vision.resolutions:
        found.append(_vector("newline.weight", vision.connector[-1].rows))
    return tuple(found)


def _vector(name: str, width: int) -> Parameter:
    return Parameter(name, (width,), (width,), "bias")


def tower_activation_bytes(config: EngineConfig) -> int:
    """Return the bytes of reading the largest image, as if all were float32; 0 without a tower."""
    vision, images = config.model.vision, config.images
    if vision is None or images is None:
        return 0
    edge = images.longest_edge ** (2 if vision.fit == "bounded" else 1)
    pixels = max(images.crop**2, edge if vision.fit == "tiled" else 0) or edge
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


def _limits(layers: int) -> Iterator[Parameter]:
    """Yield the bounds of all products, one number each."""
    for number in range(layers):
        for part in (part for parts in CLIPPED.values() for part in parts):
            for bound in BOUNDS:
                yield Parameter(f"layers.{number}.{part}_limits.{bound}", (1,), (1,), "exact")
