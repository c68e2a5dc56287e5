"""Rotary position embedding: the table of cosines and sines, for each way of scaling it.

Frequencies and angles follow Hugging Face's `modeling_rope_utils` and are rounded to float32 after
each operation, as there. Powers, cosines and sines are computed in float64 and rounded once. So the
table is correctly rounded and does not depend on the machine's vector instructions. The float32
functions of torch give the neighbouring number for about 5 % of the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import UnsupportedModelError
from quire.core.layers import yarn_magnitude
from quire.core.model_config import RopeConfig

Floats = NDArray[np.float32]
_TURN = np.float32(2 * math.pi)
_ROWS = 1024
"""Positions computed at once, so that the float64 values stay in the cache."""
_THREADS = 4


def rope_table(config: RopeConfig, max_len: int, *, scaled: bool = True) -> Floats:
    """Return float32 [max_len, rotary_dim]: cosines of the angles, then sines, each half as wide.

    Args:
        scaled: multiply them by `rope_magnitude`.

    Raises:
        UnsupportedModelError: an unknown scaling; names it and the known ones.
    """
    if config.scaling not in _SCALINGS:
        raise UnsupportedModelError(
            f"RoPE scaling {config.scaling!r} is not supported; known: {', '.join(_SCALINGS)}.",
            param="rope_scaling",
        )
    frequencies = _SCALINGS[config.scaling](config, max_len)
    if config.backwards:
        frequencies = -frequencies
    table = np.empty((max_len, config.rotary_dim), np.float32)
    cos, sin = table[:, : config.rotary_dim // 2], table[:, config.rotary_dim // 2 :]

    def fill(begin: int) -> None:
        rows = slice(begin, min(begin + _ROWS, max_len))
        position = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]
        # Rounded to float32 as in Transformers, then exact.
        of_rows = frequencies[rows] if frequencies.ndim == 2 else frequencies
        angles = (position * of_rows).astype(np.float64)
        cos[rows], sin[rows] = np.cos(angles), np.sin(angles)

    # 40,960 positions of 128 take one core 80 ms; numpy computes without Python's lock.
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(fill, range(0, max_len, _ROWS)):
            pass
    if scaled and (magnitude := rope_magnitude(config)) != 1.0:
        table *= np.float32(magnitude)
    return table


def rope_magnitude(config: RopeConfig) -> float:
    """Return the factor of cosines and sines, with which YaRN and LongRoPE sharpen attention."""
    if config.scaling == "yarn":
        return float(yarn_magnitude(config.params))
    return float(config.params["attention_factor"]) if config.scaling == "longrope" else 1.0


# The functions below return radians per token, float32 [rotary_dim / 2], or [max_len, …] if the
# base depends on the position.


def _exponents(config: RopeConfig) -> Floats:
    return np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)


def _power(base: float | Floats, exponent: float | Floats) -> Floats:
    """Return base ** exponent of float32 numbers, rounded once."""
    wide = np.power(np.float64(base), np.float64(exponent))
    return np.asarray(wide, np.float32)


def _default(config: RopeConfig, max_len: int) -> Floats:
    return np.float32(1.0) / _power(config.theta, _exponents(config))


def _linear(config: RopeConfig, max_len: int) -> Floats:
    """Divide positions by `factor`."""
    return _default(config, max_len) / np.float32(config.params["factor"])


def _dynamic(config: RopeConfig, max_len: int) -> Floats:
    """Scale NTK-aware: the base grows with the length once that passes the trained one.

    Position p is turned with the base for a sequence of p + 1 tokens. So prompts up to the trained
    length keep their logits, and a token's key does not depend on what follows it, as a paged cache
    with prefix sharing needs; tokens generated past it are as in Transformers.
    """
    trained = config.params["original_max_position_embeddings"]
    factor = config.params["factor"]
    width = config.rotary_dim
    length = np.maximum(np.arange(1, max_len + 1, dtype=np.float32), np.float32(trained))
    stretched = np.float32(factor) * length / np.float32(trained) - np.float32(factor - 1)
    bases = np.float32(config.theta) * _power(stretched, width / (width - 2))
    return np.float32(1.0) / _power(bases[:, None], _exponents(config))


def _llama3(config: RopeConfig, max_len: int) -> Floats:
    """Scale as Llama 3: stretch long wavelengths by `factor`, keep short ones, blend between."""
    p = config.params
    frequencies = _default(config, max_len)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    turns = np.float32(p["original_max_position_embeddings"]) * frequencies / _TURN
    if high > low:
        kept = np.clip((turns - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    else:  # nothing is blended (Llama 4)
        kept = (turns >= np.float32(low)).astype(np.float32)
    stretched = (np.float32(1.0) - kept) * frequencies / np.float32(p["factor"])
    scaled: Floats = stretched + kept * frequencies
    return scaled


def _yarn(config: RopeConfig, max_len: int) -> Floats:
    """Scale by YaRN (Peng et al. 2023), static: the same at every length.

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
    steps = (np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(slope)
    ramp = np.clip(steps, 0.0, 1.0)
    frequencies = _default(config, max_len)
    stretched = frequencies / np.float32(factor) * ramp
    scaled: Floats = stretched + frequencies * (np.float32(1.0) - ramp)
    return scaled


def _yarn_dimension(config: RopeConfig, turns: float) -> float:
    """Return the (fractional) pair of dimensions that turns `turns` times in the trained length."""
    trained = config.params["original_max_position_embeddings"]
    return (
        config.rotary_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(config.theta))
    )


def _longrope(config: RopeConfig, max_len: int) -> Floats:
    """Scale by LongRoPE (Ding et al. 2024): a factor for each frequency, of two lists.

    Which list depends on `max_len` alone: the long one where sequences may pass the trained
    length. Were it each sequence's own length, as in Transformers, the keys that a sequence has
    cached would be wrong once it grows past that length, and prefixes could not be shared.
    """
    p = config.params
    factors = p[
        "long_factor" if max_len > p["original_max_position_embeddings"] else "short_factor"
    ]
    divisors: Floats = np.array(factors, dtype=np.float32)
    return _default(config, max_len) / divisors


def _proportional(config: RopeConfig, max_len: int) -> Floats:
    """Turn only the fastest `part` of all pairs (Gemma 4)."""
    frequencies = _default(config, max_len)
    frequencies[int(config.params["part"] * config.rotary_dim // 2) :] = 0.0
    return frequencies / np.float32(config.params["factor"])


_SCALINGS: dict[str, Callable[[RopeConfig, int], Floats]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
