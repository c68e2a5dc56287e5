"""Rotary position embedding: the table of cosines and sines, for each way of scaling it.

Wavelengths follow Hugging Face's `modeling_rope_utils`, in float32 as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from quire.core.config import RopeConfig
from quire.core.errors import UnsupportedModelError
from quire.core.rope import yarn_magnitude


def rope_table(config: RopeConfig, max_len: int) -> Tensor:
    """float32 [max_len, rotary_dim]: cosines of the angles, then sines, each half as wide.

    Raises:
        UnsupportedModelError: an unknown scaling; names it and the known ones.
    """
    if config.scaling not in _SCALINGS:
        raise UnsupportedModelError(
            f"RoPE scaling {config.scaling!r} is not supported; known: {', '.join(_SCALINGS)}.",
            param="rope_scaling",
        )
    inverse_wavelengths, magnitude = _SCALINGS[config.scaling](config, max_len)
    angles = torch.arange(max_len, dtype=torch.float32).unsqueeze(1) * inverse_wavelengths
    return torch.cat([angles.cos() * magnitude, angles.sin() * magnitude], dim=1)


_Frequencies = tuple[Tensor, float]
"""(radians a token: float32 [rotary_dim / 2], or [max_len, …] where the base depends on the
position; what cosines and sines are multiplied by)."""


def _exponents(config: RopeConfig) -> Tensor:
    return torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim


def _default(config: RopeConfig, max_len: int) -> _Frequencies:
    return 1.0 / config.theta ** _exponents(config), 1.0


def _linear(config: RopeConfig, max_len: int) -> _Frequencies:
    """Positions are divided by `factor`."""
    frequencies, magnitude = _default(config, max_len)
    return frequencies / config.params["factor"], magnitude


def _dynamic(config: RopeConfig, max_len: int) -> _Frequencies:
    """NTK-aware: the base grows with the length once that passes the trained one.

    Position p is turned with the base for a sequence of p + 1 tokens. So prompts up to the trained
    length keep their logits, and a token's key does not depend on what follows it, as a paged cache
    with prefix sharing needs; tokens generated past it are as in Transformers.
    """
    trained = config.params["original_max_position_embeddings"]
    factor = config.params["factor"]
    width = config.rotary_dim
    length = torch.arange(1, max_len + 1, dtype=torch.float32).clamp(min=trained)
    growth = (factor * length / trained - (factor - 1)) ** (width / (width - 2))
    return 1.0 / (config.theta * growth).unsqueeze(1) ** _exponents(config), 1.0


def _llama3(config: RopeConfig, max_len: int) -> _Frequencies:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    p = config.params
    frequencies, _ = _default(config, max_len)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    turns = p["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / p["factor"] + kept * frequencies, 1.0


def _yarn(config: RopeConfig, max_len: int) -> _Frequencies:
    """YaRN (Peng et al. 2023), static: applied at every length.

    Dimensions that turn more than `beta_fast` times over the trained length are kept, those that
    turn fewer than `beta_slow` times are interpolated, with a ramp between.
    """
    p, width = config.params, config.rotary_dim
    factor = p["factor"]
    kept_below = _yarn_dimension(config, p.get("beta_fast") or 32.0)
    stretched_above = _yarn_dimension(config, p.get("beta_slow") or 1.0)
    if p.get("truncate", True):
        kept_below, stretched_above = math.floor(kept_below), math.ceil(stretched_above)
    low, high = max(kept_below, 0), min(stretched_above, width - 1)
    slope = high - low if high != low else 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / slope).clamp(0.0, 1.0)
    frequencies, _ = _default(config, max_len)
    return frequencies / factor * ramp + frequencies * (1.0 - ramp), yarn_magnitude(p)


def _yarn_dimension(config: RopeConfig, turns: float) -> float:
    """The (fractional) pair of dimensions that turns `turns` times over the trained length."""
    trained = config.params["original_max_position_embeddings"]
    return (
        config.rotary_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(config.theta))
    )


def _longrope(config: RopeConfig, max_len: int) -> _Frequencies:
    """LongRoPE (Ding et al. 2024): a factor for each frequency, of two lists.

    Which list depends on `max_len` alone: the long one where sequences may pass the trained
    length. Were it each sequence's own length, as in Transformers, the keys that a sequence has
    cached would be wrong once it grows past that length, and prefixes could not be shared.
    """
    p = config.params
    factors = p[
        "long_factor" if max_len > p["original_max_position_embeddings"] else "short_factor"
    ]
    frequencies, _ = _default(config, max_len)
    return frequencies / torch.tensor(factors, dtype=torch.float32), float(p["attention_factor"])


_SCALINGS: dict[str, Callable[[RopeConfig, int], _Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
