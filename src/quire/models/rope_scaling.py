"""One RoPE's numbers: its base, its width, and what its scaling reads, each checked."""

from __future__ import annotations

import logging
import math
from typing import Any

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.model_config import RopeConfig
from quire.models.hf import HFConfig, integer, number, wrong

logger = logging.getLogger(__name__)

TRAINED = "original_max_position_embeddings"
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", TRAINED),
    "yarn": ("factor", TRAINED, "attention_factor", "beta_fast", "beta_slow", "mscale",
             "mscale_all_dim", "truncate"),
    "proportional": ("factor",),
    "longrope": ("factor", TRAINED, "attention_factor", "short_factor", "long_factor"),
}  # fmt: skip
"""RoPE scalings, and the fields that each reads."""
FIELDS = frozenset(name for names in SCALINGS.values() for name in names)

_FACTOR_BOUNDS = 1e-6, 1e9
"""Beyond them float32 angles become infinite or NaN."""


def parsed(
    params: dict[str, Any], kind: str, head_dim: int, max_len: int, *, partial: float | None = None
) -> RopeConfig:
    """Check every field of one RoPE and give those that its scaling reads."""
    theta = number(params, "rope_theta")
    if theta < 1 or (theta == 1 and kind == "yarn"):
        raise wrong("rope_theta", params["rope_theta"], "greater than 1")
    part = number(params, "partial_rotary_factor", default=partial or 1.0)
    if kind == "proportional":  # the other elements turn by nothing
        found = {"part": part, "factor": _factor(params, "factor", 1.0)}
        if part > 1.0 or head_dim % 2:
            raise wrong("partial_rotary_factor", part, "at most 1, with an even head_dim")
        return RopeConfig(theta, head_dim, kind, found)
    if part != 1.0 and partial is None:
        raise UnsupportedModelError(
            f"config.json: partial_rotary_factor is {part:g}; this architecture rotates whole "
            "heads.",
            fix="Remove it.",
            param="partial_rotary_factor",
        )
    rotary_dim = int(head_dim * min(part, 2.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"config.json: RoPE would turn {rotary_dim} of head_dim = {head_dim} dimensions; "
            "the number must be even and within the head.",
            param="head_dim",
        )
    for name in sorted((FIELDS - set(SCALINGS[kind])) & params.keys()):
        if name == TRAINED and (kind != "dynamic" or params[name] == max_len):
            continue
        if kind == "default" and params[name] != 1.0:
            raise CheckpointError(
                f"config.json: RoPE's {name} is {params[name]!r}, but rope_type is 'default', "
                "which scales nothing.",
                fix="Remove it, or name the scaling in rope_type.",
                param=name,
            )
        logger.warning("config.json: RoPE scaling %r ignores %s, %r.", kind, name, params[name])
    return RopeConfig(theta, rotary_dim, kind, _scaling(params, kind, rotary_dim, max_len))


def _scaling(params: HFConfig, kind: str, rotary_dim: int, max_len: int) -> dict[str, Any]:
    match kind:
        case "linear":
            return {"factor": _factor(params, "factor")}
        case "dynamic":
            if rotary_dim < 4:
                raise CheckpointError(
                    f"config.json: dynamic RoPE scaling divides by head_dim - 2; head_dim is "
                    f"{rotary_dim}, it must be at least 4.",
                    param="head_dim",
                )
            return {"factor": _factor(params, "factor"), TRAINED: max_len}
        case "llama3":
            return _llama3(params)
        case "yarn":
            return _yarn(params, max_len)
        case "longrope":
            return _longrope(params, rotary_dim, max_len)
    return {}


def _llama3(params: HFConfig) -> dict[str, Any]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    found: dict[str, Any] = {name: _factor(params, name) for name in names}
    if found["high_freq_factor"] < found["low_freq_factor"]:
        raise wrong(
            "high_freq_factor",
            params["high_freq_factor"],
            f"at least low_freq_factor, {found['low_freq_factor']:g}",
        )
    return found | {TRAINED: integer(params, TRAINED)}


def _yarn(params: HFConfig, max_len: int) -> dict[str, Any]:
    trained = integer(params, TRAINED)
    found: dict[str, Any] = {
        "factor": _factor(params, "factor", max_len / trained),
        TRAINED: trained,
    }
    for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        if params.get(name) not in (None, 0):  # 0 is Transformers' default, too
            found[name] = _factor(params, name)
    if params.get("attention_factor") is not None:
        found["attention_factor"] = _factor(params, "attention_factor")
    if "truncate" in params:
        if not isinstance(params["truncate"], bool):
            raise wrong("truncate", params["truncate"], "true or false")
        found["truncate"] = params["truncate"]
    return found


def _longrope(params: HFConfig, rotary_dim: int, max_len: int) -> dict[str, Any]:
    """Return LongRoPE's numbers, including those that the config leaves to be inferred."""
    found: dict[str, Any] = {}
    for name in ("short_factor", "long_factor"):
        factors = params.get(name)
        if factors is None:
            raise CheckpointError(f"config.json: {name} is missing.", param=name)
        if not isinstance(factors, list) or len(factors) != rotary_dim // 2:
            raise wrong(name, factors, f"a list of {rotary_dim // 2} numbers")
        found[name] = [_factor({name: factor}, name) for factor in factors]
    trained = integer(params, TRAINED)
    factor = _factor(params, "factor", max_len / trained)
    if params.get("attention_factor") is not None:
        found["attention_factor"] = _factor(params, "attention_factor")
    elif factor > 1.0 and trained == 1:
        raise wrong(TRAINED, trained, "above 1 where attention_factor is not given")
    else:
        sharper = math.sqrt(1.0 + math.log(factor) / math.log(trained)) if factor > 1.0 else 1.0
        found["attention_factor"] = sharper
    return found | {TRAINED: trained}


def _factor(params: HFConfig, name: str, default: float | None = None) -> float:
    """Return a number of RoPE's scaling, within the range of float32 angles."""
    value = number(params, name, default=default)
    low, high = _FACTOR_BOUNDS
    if not low <= value <= high:
        raise wrong(name, params.get(name, value), f"between {low:g} and {high:g}")
    return value
