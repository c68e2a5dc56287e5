"""Fields and names of Mamba-2 layers, as most config.json files and checkpoints have them."""

from __future__ import annotations

from typing import Any

from quire.core.errors import CheckpointError
from quire.core.layers import LARGEST_STEP, Mamba2Config
from quire.models import hf


def names(block: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a Mamba-2 layer's tensors below `block`."""
    return {
        "recurrent.in": (f"{block}.in_proj",),
        "recurrent.conv": (f"{block}.conv1d",),
        "recurrent.rate": (f"{block}.A_log",),
        "recurrent.bias": (f"{block}.dt_bias",),
        "recurrent.skip": (f"{block}.D",),
        "recurrent.norm": (f"{block}.norm",),
        "recurrent.out": (f"{block}.out_proj",),
    }


def parse(config: hf.HFConfig, inner: int | None = None, **differences: Any) -> Mamba2Config:
    """Return the Mamba-2 layers of a hybrid model (fields `mamba_…`).

    Args:
        inner: width of all heads; None means `mamba_expand` times the hidden size.
        differences: fields of `Mamba2Config`.
    """
    heads = hf.integer(config, "mamba_n_heads", default=128)
    if inner is None:
        inner = hf.integer(config, "mamba_expand", default=2) * hf.integer(config, "hidden_size")
    width = config.get("mamba_d_head", "auto")
    fields: dict[str, Any] = {
        "groups": hf.integer(config, "mamba_n_groups", default=1),
        "state_dim": hf.integer(config, "mamba_d_state", default=256),
        "width": hf.integer(config, "mamba_d_conv", default=4),
        "conv_bias": hf.flag(config, "mamba_conv_bias", default=True),
        "bias": hf.boolean(config, "mamba_proj_bias", default=False),
    }
    head_dim = inner // heads if width == "auto" else hf.integer(config, "mamba_d_head")
    return mamba2(config, inner, heads, head_dim, "mamba_n_heads", **(fields | differences))


def mamba2(
    config: hf.HFConfig, inner: int, heads: int, head_dim: int, field: str, **fields: Any
) -> Mamba2Config:
    """Return the layers, after checking their sizes.

    Args:
        inner: width of all heads.
        field: what the config calls the number of heads.
        fields: others of `Mamba2Config`.

    Raises:
        CheckpointError: heads do not fill the width, or groups do not divide the heads.
    """
    if heads * head_dim != inner or heads % fields["groups"]:
        raise CheckpointError(
            f"config.json: {field} is {heads}; {heads} heads of {head_dim} in "
            f"{fields['groups']} groups do not form a layer of {inner}.",
            param=field,
        )
    return Mamba2Config(
        heads=heads,
        head_dim=head_dim,
        **({"limits": _limits(config), "out_bias": fields["bias"]} | fields),
    )


def _limits(config: hf.HFConfig) -> tuple[float, float]:
    found = config.get("time_step_limit")
    if found is None:
        return 0.0, LARGEST_STEP
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        raise hf.wrong("time_step_limit", found, "a least and a greatest number")
    # Transformers writes an infinite number as a table.
    plain: list[Any] = [each.get("__float__") if isinstance(each, dict) else each for each in found]
    try:
        low, high = (min(float(each), LARGEST_STEP) for each in plain)
    except (TypeError, ValueError):
        raise hf.wrong("time_step_limit", found, "a least and a greatest number") from None
    return low, high
