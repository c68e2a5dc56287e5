"""RoPE as config.json states it, in every spelling, with the precedence of Transformers.

Transformers 4 writes `rope_scaling` and a top-level `rope_theta`; Transformers 5 writes one
table, `rope_parameters`, which holds a table for each kind of layer where these differ. A config
may mix the spellings. Where Transformers drops what another place states, the config is refused;
where two places state one field and Transformers has a rule, the rule holds and a warning names
both values.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.model_config import RopeConfig
from quire.models.hf import MAX_INTEGER, HFConfig, number, table, wrong
from quire.models.rope_scaling import FIELDS, SCALINGS, TRAINED, parsed

logger = logging.getLogger(__name__)

DEFAULT_THETA = 10_000.0
FULL, SLIDING = "full_attention", "sliding_attention"

_UNSCALED = ("rope_theta", "partial_rotary_factor")
_TOP_LEVEL = (*_UNSCALED, TRAINED)
_STRETCHES = ("llama3", "yarn", "longrope")
"""Scalings that need the length a model was trained at."""
_LAYER_THETAS = {
    "rope_theta": FULL,
    "rope_local_base_freq": SLIDING,
    "global_rope_theta": FULL,
    "local_rope_theta": SLIDING,
}
"""Top-level name of a base → the kind of layers it is for, where kinds differ."""


def rope(
    hf: HFConfig,
    head_dim: int,
    max_len: int,
    *,
    partial: float | None = None,
    trained: int | None = None,
    theta: float = DEFAULT_THETA,
    interleaved: bool = False,
) -> RopeConfig:
    """Return the RoPE that all layers share.

    Args:
        hf: config.json.
        head_dim: elements of a head.
        max_len: the config's max_position_embeddings.
        partial: the part of each head that is rotated where the config does not say; None is an
            architecture that rotates whole heads.
        trained: what an absent top-level `original_max_position_embeddings` means; None is
            `max_len`.
        theta: what an absent base means.
        interleaved: see `RopeConfig`.

    Raises:
        CheckpointError: a field is wrong, missing, or stated twice; names it.
        UnsupportedModelError: Quire does not have this RoPE.
    """
    older, newer = _stated(hf, "rope_scaling"), _stated(hf, "rope_parameters")
    for field, params in (("rope_scaling", older), ("rope_parameters", newer)):
        nested = next((name for name, value in params.items() if isinstance(value, dict)), None)
        if nested is not None:
            raise UnsupportedModelError(
                f"config.json: {field}.{nested} is a table, but all layers of this architecture "
                "share one RoPE.",
                fix=f"Write the fields into {field} itself.",
                param=field,
            )
    params = dict(older or newer)
    top = {name: hf[name] for name in _TOP_LEVEL if hf.get(name) is not None}
    kind = _kind(params)
    if older and newer:
        _refuse_dropped(newer, older, kind, top, theta)
    for name in _UNSCALED:
        if name in params and name in top and params[name] != top[name]:
            _warn_twice(name, params[name], top[name], f"Quire takes {params[name]!r}")
        elif name in top:
            params.setdefault(name, top[name])
    params.setdefault("rope_theta", theta)
    if kind in _STRETCHES:
        _set_trained(params, top.get(TRAINED), trained, max_len)
    found = parsed(params, kind, head_dim, max_len, partial=partial)
    return replace(found, interleaved=interleaved)


def ropes(
    hf: HFConfig,
    head_dim: int,
    max_len: int,
    *,
    thetas: Mapping[str, tuple[str, float]],
    scaled: tuple[str, ...],
    full_head_dim: int | None = None,
) -> tuple[RopeConfig, RopeConfig]:
    """Return the RoPE of the layers that attend to all, and of those that slide.

    Args:
        thetas: kind of layers → the older top-level name of its base, and the base's default.
        scaled: kinds that an older `rope_scaling` is for.
        full_head_dim: elements of a head in the layers that attend to all; None is `head_dim`.

    Raises:
        CheckpointError, UnsupportedModelError: see `rope`.
    """
    older, newer = _stated(hf, "rope_scaling"), _stated(hf, "rope_parameters")
    _refuse_unread(hf, older, newer, {name for name, _ in thetas.values()})
    found = []
    for layers in (FULL, SLIDING):
        params = dict(table(newer, layers))
        if layers in scaled:
            _warn_overwritten(params, older, layers)
            params |= older
        name, default = thetas[layers]
        if "rope_theta" in params and hf.get(name) not in (None, params["rope_theta"]):
            _warn_twice(
                f"rope_parameters.{layers}.rope_theta", params["rope_theta"], hf[name],
                f"the top-level {name} is ignored",
            )  # fmt: skip
        params.setdefault("rope_theta", number(hf, name, default=default))
        if params.get("truncate", True) is not True:
            raise UnsupportedModelError(
                f"config.json: rope_parameters.{layers}.truncate is {params['truncate']!r}; "
                "Transformers ignores it there.",
                fix="Remove it.",
                param="truncate",
            )
        kind = _kind(params)
        if kind in _STRETCHES:
            params.setdefault(TRAINED, max_len)
        width = full_head_dim if layers == FULL and full_head_dim else head_dim
        found.append(parsed(params, kind, width, max_len))
    return found[0], found[1]


def _refuse_unread(
    hf: HFConfig, older: Mapping[str, Any], newer: Mapping[str, Any], names: Set[str]
) -> None:
    """Raise CheckpointError for RoPE settings that a model with two kinds of layers ignores.

    Args:
        names: top-level keys that it reads.
    """
    flat = sorted(name for name in newer if name not in (FULL, SLIDING))
    if flat:
        raise CheckpointError(
            f"config.json: rope_parameters.{flat[0]} is {newer[flat[0]]!r}, which says nothing of "
            "a kind of layers; Transformers ignores it.",
            fix=f"Write it into rope_parameters.{FULL} or rope_parameters.{SLIDING}.",
            param="rope_parameters",
        )
    unread = next((n for n in _TOP_LEVEL if n not in names and hf.get(n) is not None), None)
    if unread is not None and (unread != "partial_rotary_factor" or hf[unread] != 1):
        raise CheckpointError(
            f"config.json: {unread} is {hf[unread]!r}; this architecture has a RoPE for each kind "
            "of layers and ignores it.",
            fix=f"Write it into rope_parameters.{FULL} or rope_parameters.{SLIDING}.",
            param=unread,
        )
    if "rope_type" not in older and older.get("type", "default") != "default":
        raise CheckpointError(
            f"config.json: rope_scaling.type is {older['type']!r}; Transformers ignores this "
            "older name in this architecture.",
            fix="Rename it to rope_scaling.rope_type.",
            param="rope_scaling",
        )


def longest(config: RopeConfig, max_position_embeddings: int) -> int:
    """Return the longest usable sequence: yarn and dynamic scaling extend the trained length."""
    if config.scaling not in ("yarn", "dynamic"):
        return max_position_embeddings
    stretched = config.params[TRAINED] * config.params["factor"]
    if stretched > MAX_INTEGER:
        raise wrong("rope_scaling", config.params, "a factor that gives so many positions")
    return max(max_position_embeddings, int(stretched))


def overridden(config: HFConfig, given: HFConfig) -> dict[str, Any]:
    """Return `config` with the fields of `given`, whatever spelling either uses.

    A field that is null is taken away. A table takes the place of the other table too, and keeps
    the base and the rotated part that it does not state.
    """
    found = dict(config)
    tables = {name: given[name] for name in ("rope_scaling", "rope_parameters") if name in given}
    own = {name: _copied(found.get(name)) for name in ("rope_scaling", "rope_parameters")}
    for name in (*_TOP_LEVEL, *_LAYER_THETAS):
        if name in given:
            for params in own.values():
                _take_away(params, name)
    if tables:
        stated = [params for params in tables.values() if isinstance(params, dict)]
        for name in _TOP_LEVEL:
            if any(name in params for params in stated):
                found.pop(name, None)
        found.pop("rope_scaling", None)
        kept = _unscaled(own["rope_scaling"] or own["rope_parameters"])
        found["rope_parameters"] = kept
        if isinstance(tables.get("rope_parameters"), dict):
            found["rope_parameters"] = _merged(kept, tables["rope_parameters"])
        elif stated and not any(isinstance(value, dict) for value in kept.values()):
            found |= {name: value for name, value in kept.items() if name not in stated[0]}
            found["rope_parameters"] = {}
        if isinstance(tables.get("rope_scaling"), dict):
            found["rope_scaling"] = tables["rope_scaling"]
        for name, params in tables.items():
            if params is not None and not isinstance(params, dict):
                found[name] = params  # which parsing refuses by name
        if not found["rope_parameters"]:
            del found["rope_parameters"]
    else:
        found |= {name: params for name, params in own.items() if params is not None}
    for name, value in given.items():
        if name in tables:
            continue
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def _copied(params: Any) -> Any:
    """Return a table and its nested tables copied; anything else unchanged."""
    if not isinstance(params, dict):
        return params
    return {name: dict(v) if isinstance(v, dict) else v for name, v in params.items()}


def _take_away(params: Any, name: str) -> None:
    """Remove what the top-level `name` overrides from a table, or from those nested in it."""
    if not isinstance(params, dict):
        return
    nested = {key: value for key, value in params.items() if isinstance(value, dict)}
    if not nested:
        params.pop(name, None)
    for key, value in nested.items():
        if name in _LAYER_THETAS and key == _LAYER_THETAS[name]:
            value.pop("rope_theta", None)
        elif name in ("partial_rotary_factor", TRAINED):
            value.pop(name, None)


def _unscaled(params: Any) -> dict[str, Any]:
    """Return the fields of a table and its nested tables that are not scaling."""
    if not isinstance(params, dict):
        return {}
    nested = {key: _unscaled(value) for key, value in params.items() if isinstance(value, dict)}
    flat = {name: params[name] for name in _UNSCALED if params.get(name) is not None}
    return {key: value for key, value in nested.items() if value} | flat


def _merged(kept: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` merged over `kept`, table by table; entries of another shape are dropped."""
    if any(isinstance(value, dict) for value in given.values()):
        nested = {key: value for key, value in kept.items() if isinstance(value, dict)}
        return nested | {
            key: nested.get(key, {}) | value if isinstance(value, dict) else value
            for key, value in given.items()
        }
    return {k: v for k, v in kept.items() if not isinstance(v, dict)} | given


def _stated(hf: HFConfig, name: str) -> dict[str, Any]:
    """Return the fields of a table that are set."""
    return {key: value for key, value in table(hf, name).items() if value is not None}


def _kind(params: dict[str, Any]) -> str:
    """Return the scaling named under `rope_type`, or under the older `type`."""
    older = params.pop("type", None)
    kind = params.pop("rope_type", older)
    if older is not None and kind != older:
        _warn_twice("rope_type", kind, older, f"Quire takes {kind!r}, as the newer name")
    if kind is None:
        scaled = sorted(name for name in FIELDS & params.keys() if params[name] != 1.0)
        if scaled:
            raise CheckpointError(
                f"config.json: RoPE's {scaled[0]} is {params[scaled[0]]!r}, but rope_type is "
                "missing, and Transformers then scales nothing.",
                fix=f"Add rope_type, one of {', '.join(SCALINGS)}.",
                param="rope_type",
            )
        return "default"
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnsupportedModelError(
            f"config.json: RoPE scaling {kind!r} is not supported; known: {', '.join(SCALINGS)}.",
            param="rope_scaling",
        )
    return kind


def _refuse_dropped(
    newer: dict[str, Any], older: dict[str, Any], kind: str, top: dict[str, Any], theta: float
) -> None:
    """Refuse a `rope_parameters` that differs from the config's `rope_scaling`.

    Transformers then reads `rope_scaling` and the top level alone.
    """
    taken = {"rope_theta": theta, "partial_rotary_factor": 1.0} | top | older
    for name, value in newer.items():
        if name in ("rope_type", "type"):
            agrees = value in ("default", kind)
        else:
            agrees = taken.get(name) == value
        if not agrees:
            raise CheckpointError(
                f"config.json: rope_parameters.{name} is {value!r}, but rope_scaling is there too, "
                f"and Transformers then takes {taken.get(name, kind)!r}.",
                fix="Write all of RoPE into rope_parameters, or pass it with --hf-overrides "
                """'{"rope_parameters": …}'.""",
                param="rope_parameters",
            )


def _set_trained(params: dict[str, Any], top: Any, default: int | None, max_len: int) -> None:
    """Set the length a model was trained at: the top level's, the table's, or the default."""
    inner = params.get(TRAINED)
    if top is not None:
        if inner is not None and inner != top:
            _warn_twice(TRAINED, inner, top, f"Quire takes the top level's {top!r}")
        params[TRAINED] = top
    elif default is not None and inner not in (None, default):
        raise CheckpointError(
            f"config.json: {TRAINED} is {inner!r} inside RoPE's table and missing at the top "
            f"level, where Transformers then takes {default}.",
            fix="Write it at the top level too.",
            param=TRAINED,
        )
    elif inner is None:
        params[TRAINED] = max_len if default is None else default


def _warn_twice(name: str, first: Any, second: Any, taken: str) -> None:
    logger.warning("config.json states %s as %r and as %r; %s.", name, first, second, taken)


def _warn_overwritten(params: dict[str, Any], older: dict[str, Any], layers: str) -> None:
    for name, value in older.items():
        if name in params and params[name] != value:
            _warn_twice(
                f"rope_parameters.{layers}.{name}", params[name], value,
                f"Quire takes rope_scaling's {value!r}",
            )  # fmt: skip
