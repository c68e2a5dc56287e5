"""Which layers of a model have sliding windows, as config.json says it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from quire.core.errors import CheckpointError
from quire.models import hf

_LAYER_TYPES = ("full_attention", "sliding_attention")


def upper_layers(
    config: hf.HFConfig,
    slides_at: Callable[[int, int], bool] = operator.ge,
    window: int | None = 4096,
) -> dict[str, Any]:
    """Return the fields of sliding attention: none unless `use_sliding_window`; then for the layers
    in `layer_types`.

    Args:
        slides_at: slides_at(layer, max_window_layers) says which layers slide without
            `layer_types`: those from it on.
        window: what an absent `sliding_window` means.
    """
    used = hf.boolean(config, "use_sliding_window", default=False)
    window = hf.optional(config, "sliding_window", window) if used else None
    slides = layer_types(config)
    if slides is None:
        upper = config.get("max_window_layers") == 0
        first = 0 if upper else hf.integer(config, "max_window_layers", default=28)
        layers = hf.integer(config, "num_hidden_layers")
        slides = tuple(window is not None and slides_at(layer, first) for layer in range(layers))
    if not any(slides):
        return {}
    if window is None:
        raise CheckpointError(
            "config.json: layer_types has layers that slide, but use_sliding_window is not true "
            "or sliding_window is null.",
            fix="Set both, or make the layers full_attention.",
            param="use_sliding_window",
        )
    return {"sliding_window": window, "sliding_layers": slides}


def pattern(config: hf.HFConfig, period: int | None) -> tuple[bool, ...]:
    """Return which layers slide: those in `layer_types`, or all but the last of each `period`; none
    if `period` is None.
    """
    slides = layer_types(config)
    if slides is not None:
        return slides
    layers = range(hf.integer(config, "num_hidden_layers"))
    return tuple(period is not None and (layer + 1) % period != 0 for layer in layers)


def windowed(
    window: int | None, slides: tuple[bool, ...], name: str = "sliding_window"
) -> dict[str, Any]:
    """Return the fields of a window that some layers have; `name` is its own in config.json."""
    if not any(slides):
        return {}
    if window is None:
        raise CheckpointError(
            f"config.json: {name} is null, but there are layers that have one.",
            fix=f"Set {name}, or make all layer_types full_attention.",
            param=name,
        )
    return {"sliding_window": window, "sliding_layers": slides}


def layer_types(
    config: hf.HFConfig, kinds: tuple[str, str] = _LAYER_TYPES
) -> tuple[bool, ...] | None:
    """Return which layers slide according to `layer_types`; None if it is absent."""
    layers = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        return None
    if (
        not isinstance(types, list)
        or len(types) != layers
        or any(kind not in kinds for kind in types)
    ):
        raise CheckpointError(
            f"config.json: layer_types is {types!r}; it must have {layers} entries, each "
            f"{' or '.join(kinds)}.",
            param="layer_types",
        )
    return tuple(kind == kinds[1] for kind in types)
