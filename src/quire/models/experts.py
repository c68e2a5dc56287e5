"""Fields and names of a mixture of experts, as most config.json files and checkpoints have them."""

from __future__ import annotations

from typing import Any

from quire.core.errors import CheckpointError
from quire.core.layers import MoEConfig, RouteSpec
from quire.models import hf
from quire.models.weights.stacks import Stacked


def stacked(block: str) -> dict[str, Stacked]:
    """Return the tensors of all experts below `block`, as Transformers has them in memory."""
    return {f"mlp.experts.{name}": Stacked(f"{block}.{name}_proj") for name in ("gate_up", "down")}


STACKED = stacked("mlp.experts")


def names(
    block: str,
    router: str = "gate",
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, tuple[str, ...]]:
    """Return the names of experts and their router below `block`; few have a correction."""
    gate, up, down = parts
    return {
        "mlp.router": (f"{block}.{router}",),
        "mlp.router.correction": (f"{block}.{router}.e_score_correction_bias",),
        "mlp.experts.gate_up": (f"{block}.experts.{{}}.{gate}", f"{block}.experts.{{}}.{up}"),
        "mlp.experts.down": (f"{block}.experts.{{}}.{down}",),
    }


def shared(block: str) -> dict[str, tuple[str, ...]]:
    """Return the names of the experts that every token passes."""
    return {
        "mlp.shared.gate_up": (f"{block}.gate_proj", f"{block}.up_proj"),
        "mlp.shared.down": (f"{block}.down_proj",),
    }


def route(config: hf.HFConfig, top_k: int, *, renormalize: bool | None = None) -> RouteSpec:
    """Return Qwen's routing, a softmax over all experts.

    Args:
        top_k: of `num_experts_per_tok`, if absent.
        renormalize: None if `norm_topk_prob` says so.
    """
    if renormalize is None:
        renormalize = hf.boolean(config, "norm_topk_prob", default=False)
    top_k = hf.integer(config, "num_experts_per_tok", default=top_k)
    return RouteSpec(top_k, renormalize=renormalize)


def grouped_route(
    config: hf.HFConfig, top_k: int, default: tuple[int, int] = (1, 1), scale: float = 1.0
) -> RouteSpec:
    """Return DeepSeek-V3's routing: sigmoids, and a choice among the best groups of experts.

    Args:
        top_k: of `num_experts_per_tok`, if absent.
        default: of `n_group` and `topk_group`.
        scale: of `routed_scaling_factor`.

    Raises:
        CheckpointError: more groups are chosen than there are.
    """
    count, chosen = groups(config, default)
    return RouteSpec(
        hf.integer(config, "num_experts_per_tok", default=top_k),
        "sigmoid",
        renormalize=hf.flag(config, "norm_topk_prob", default=True),
        epsilon=1e-20,
        num_groups=count,
        top_groups=chosen,
        scale=hf.number(config, "routed_scaling_factor", default=scale),
    )


def groups(config: hf.HFConfig, default: tuple[int | None, int | None]) -> tuple[int, int]:
    """Return the groups of experts, and from how many of them a token chooses.

    Raises:
        CheckpointError: it chooses from more than there are, or a field without default is missing.
    """
    count = hf.integer(config, "n_group", default=default[0])
    chosen = hf.integer(config, "topk_group", default=default[1])
    if chosen > count:
        raise CheckpointError(
            f"config.json: topk_group is {chosen}, but n_group is {count}.", param="topk_group"
        )
    return count, chosen


def moe(
    config: hf.HFConfig,
    count: tuple[str, ...],
    default: int,
    route: RouteSpec,
    *,
    width: int | None = None,
    shared: int | None = None,
    **fields: Any,
) -> MoEConfig:
    """Return the experts of a model.

    Args:
        count: names of their number; `default`, if absent.
        width: default of `moe_intermediate_size`; None if it is `intermediate_size`.
        shared: default of `n_shared_experts`; None if there is no such field.
        fields: others of `MoEConfig`; `layers` may be all of them.
    """
    experts = hf.integer(config, *count, default=default)
    try:
        route.check(experts)
    except ValueError as error:
        raise CheckpointError(
            f"config.json: num_experts_per_tok does not fit: {error}.", param="num_experts_per_tok"
        ) from None
    if all(fields.get("layers") or ()):
        fields["layers"] = None
    name = "intermediate_size" if width is None else "moe_intermediate_size"
    width = hf.integer(config, name, default=width)
    if shared is not None:
        fields["shared_size"] = width * hf.integer(config, "n_shared_experts", default=shared)
    return MoEConfig(experts, width, route, **fields)


def sparse_behind(
    config: hf.HFConfig, default: int, name: str = "first_k_dense_replace"
) -> tuple[bool, ...]:
    """Return which layers have experts: those behind the first ones, whose number is `name`."""
    dense = hf.whole(config, name, default)
    return tuple(i >= dense for i in range(hf.integer(config, "num_hidden_layers")))


def sparse_by_types(config: hf.HFConfig, otherwise: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return which layers have experts by `mlp_layer_types`; `otherwise` without it."""
    types = config.get("mlp_layer_types")
    if types is None:
        return otherwise
    layers = hf.integer(config, "num_hidden_layers")
    known = isinstance(types, list) and len(types) == layers
    if not known or any(kind not in ("dense", "sparse") for kind in types):
        raise hf.wrong("mlp_layer_types", types, f"a list of {layers} of 'dense' and 'sparse'")
    return tuple(kind == "sparse" for kind in types)


def sparse_layers(config: hf.HFConfig) -> tuple[bool, ...]:
    """Return which layers have experts by Qwen's fields: every `decoder_sparse_step`-th, without
    `mlp_only_layers`."""
    layers = hf.integer(config, "num_hidden_layers")
    step = hf.integer(config, "decoder_sparse_step", default=1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise hf.wrong("mlp_only_layers", dense, "a list of layers")
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
