"""Reading Hugging Face's config.json: fields checked one by one, old and new spellings alike.

Transformers 5 writes `rope_parameters` and `dtype` for what was `rope_theta`, `rope_scaling`
and `torch_dtype`; both are read. A field set to null counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from quire.core.config import RopeConfig
from quire.core.errors import CheckpointError, UnsupportedModelError

HFConfig = Mapping[str, Any]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

MAX_INTEGER, MOST_LAYERS = 2**31 - 1, 10_000
"""More than any model has, and little enough to count with."""
LARGEST = math.nextafter(math.inf, 0.0)

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_DTYPES = ("float32", "bfloat16", "float16")
_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": (),
}
"""RoPE scalings known, and the numbers each cannot do without."""


def integer(hf: HFConfig, *names: str, default: int | None = None) -> int:
    """The positive integer under the first of `names` that is set."""
    name, value = _first(hf, names, default)
    most = MOST_LAYERS if name in ("num_hidden_layers", "n_layer") else MAX_INTEGER
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _wrong(name, value, f"a positive integer up to {most}")
    return value


def number(hf: HFConfig, *names: str, default: float | None = None) -> float:
    """The positive finite number under the first of `names` that is set."""
    name, value = _first(hf, names, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, value, "a positive number")
    if not 0 < value <= LARGEST:
        raise _wrong(name, value, "a positive number")
    return float(value)


def boolean(hf: HFConfig, name: str, *, default: bool) -> bool:
    _, value = _first(hf, (name,), default)
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def activation(hf: HFConfig, name: str, default: str) -> Activation:
    _, value = _first(hf, (name,), default)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json: {name} is {value!r}; known: {', '.join(_ACTIVATIONS)}.", param=name
        )
    return _ACTIVATIONS[value]


def only(hf: HFConfig, name: str, supported: Any, why: str) -> None:
    """Refuse a model whose field `name` is set to anything but `supported`."""
    if hf.get(name) is not None and hf[name] != supported:
        raise UnsupportedModelError(
            f"config.json: {name} is {hf[name]!r}; Quire computes only {supported!r} ({why}).",
            param=name,
        )


def dtype(hf: HFConfig) -> str:
    """The checkpoint's own dtype; float32 where it does not say."""
    name, value = _first(hf, ("dtype", "torch_dtype"), "float32")
    value = str(value).removeprefix("torch.")
    if value not in _DTYPES:
        raise UnsupportedModelError(
            f"config.json: {name} is {value!r}; known: {', '.join(_DTYPES)}.", param=name
        )
    return value


def token_ids(hf: HFConfig, name: str) -> tuple[int, ...]:
    """Token ids under `name`: one, a list of them, or none."""
    value = hf.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_INTEGER:
            raise _wrong(name, value, "a token id or a list of them")
    return tuple(ids)


def bos_token_id(hf: HFConfig) -> int | None:
    return next(iter(token_ids(hf, "bos_token_id")), None)


def heads(hf: HFConfig, hidden_size: int, head_dim: int | None) -> tuple[int, int, int]:
    """(query heads, key-value heads, head_dim); `head_dim` None is hidden_size / heads."""
    query = integer(hf, "num_attention_heads", "n_head")
    kv = integer(hf, "num_key_value_heads", default=query)
    if query % kv:
        raise CheckpointError(
            f"config.json: num_attention_heads is {query}, not a multiple of "
            f"num_key_value_heads, {kv}.",
            param="num_key_value_heads",
        )
    if head_dim is None:
        if hidden_size % query:
            raise CheckpointError(
                f"config.json: hidden_size is {hidden_size}, not a multiple of "
                f"num_attention_heads, {query}, and head_dim is not given.",
                param="hidden_size",
            )
        head_dim = hidden_size // query
    return query, kv, head_dim


def rope(hf: HFConfig, head_dim: int, max_position_embeddings: int) -> RopeConfig:
    """RoPE from `rope_parameters`, or from `rope_theta` and `rope_scaling`."""
    field, found = _first(hf, ("rope_parameters", "rope_scaling"), {})
    if not isinstance(found, dict):
        raise _wrong(field, found, "a table")
    params = dict(found)
    theta = number({**hf, **params}, "rope_theta", default=10000.0)
    partial = number({**hf, **params}, "partial_rotary_factor", default=1.0)
    scaling = params.get("rope_type", params.get("type", "default"))
    if not isinstance(scaling, str) or scaling not in _ROPE_NEEDS:
        raise UnsupportedModelError(
            f"config.json: RoPE scaling {scaling!r} is not supported; "
            f"known: {', '.join(_ROPE_NEEDS)}.",
            param="rope_scaling",
        )
    rotary_dim = int(head_dim * min(partial, 2.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"config.json: RoPE would turn {rotary_dim} of head_dim = {head_dim} dimensions; "
            "the number must be even and within the head.",
            param="head_dim",
        )
    for name in _ROPE_NEEDS[scaling]:
        number(params, name)
    if scaling in ("yarn", "llama3"):
        params.setdefault("original_max_position_embeddings", max_position_embeddings)
        trained = integer(params, "original_max_position_embeddings")
        params["factor"] = number(params, "factor", default=max_position_embeddings / trained)
    elif scaling == "longrope":
        params |= _longrope({**hf, **params}, rotary_dim, max_position_embeddings)
    elif scaling == "dynamic":
        params["original_max_position_embeddings"] = max_position_embeddings
    keep = {k: v for k, v in params.items() if k not in _ROPE_OWN_FIELDS and v is not None}
    return RopeConfig(theta, rotary_dim, scaling, keep if scaling != "default" else {})


def ropes(
    hf: HFConfig, full: HFConfig, local: HFConfig, head_dim: int, max_len: int
) -> tuple[RopeConfig, RopeConfig]:
    """RoPE of the layers that attend to all, and of those that slide: as `rope_parameters` says for
    each, over what older configurations say elsewhere."""
    given = table(hf, "rope_parameters")
    first = {**full, **table(given, "full_attention")}
    second = {**local, **table(given, "sliding_attention")}
    return (
        rope({"rope_parameters": first}, head_dim, max_len),
        rope({"rope_parameters": second}, head_dim, max_len),
    )


def table(hf: HFConfig, name: str) -> dict[str, Any]:
    """The table under `name`, empty where there is none."""
    found = hf.get(name) or {}
    if not isinstance(found, dict):
        raise _wrong(name, found, "a table")
    return found


def _longrope(hf: HFConfig, rotary_dim: int, max_position_embeddings: int) -> dict[str, Any]:
    """LongRoPE's numbers, those that the config leaves to be inferred included."""
    found: dict[str, Any] = {}
    for name in ("short_factor", "long_factor"):
        factors = _first(hf, (name,), None)[1]
        if not isinstance(factors, list) or len(factors) != rotary_dim // 2:
            raise _wrong(name, factors, f"a list of {rotary_dim // 2} numbers")
        found[name] = [number({name: factor}, name) for factor in factors]
    trained = integer(hf, "original_max_position_embeddings", default=max_position_embeddings)
    factor = number(hf, "factor", default=max_position_embeddings / trained)
    sharper = math.sqrt(1.0 + math.log(factor) / math.log(trained)) if factor > 1.0 else 1.0
    found["attention_factor"] = number(hf, "attention_factor", default=sharper)
    found["original_max_position_embeddings"] = trained
    return found


_ROPE_OWN_FIELDS = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}


def longest(rope_config: RopeConfig, max_position_embeddings: int) -> int:
    """Tokens the model is good for: yarn and dynamic stretch the length it was trained at."""
    if rope_config.scaling not in ("yarn", "dynamic"):
        return max_position_embeddings
    params = rope_config.params
    stretched = params["original_max_position_embeddings"] * params["factor"]
    if stretched > MAX_INTEGER:
        raise _wrong("rope_scaling", rope_config.params, "a factor that gives so many positions")
    stretched = int(stretched)
    return max(max_position_embeddings, stretched)


def _first(hf: HFConfig, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
    """The first of `names` that is set, and its value; `default` if none is."""
    for name in names:
        if hf.get(name) is not None:
            return name, hf[name]
    if default is None:
        raise CheckpointError(
            f"config.json: {names[0]} is missing.",
            fix="Take the config.json that was published with the weights.",
            param=names[0],
        )
    return names[0], default


def _wrong(name: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(f"config.json: {name} is {value!r}; it must be {wanted}.", param=name)
