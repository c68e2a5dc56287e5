"""Fields of Hugging Face's config.json, checked one by one, in old and new spellings.

An absent field means the default of Transformers' config class, which a caller passes. A null
means the same, except where Transformers reads it as "none": `optional`, `token_ids`, and
`heads`, where it means one key-value head per query head.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.layers import SubLayerKind
from quire.core.model_config import Activation

logger = logging.getLogger(__name__)

HFConfig = Mapping[str, Any]
PlainActivation = Literal["gelu", "gelu_tanh", "relu", "relu2"]

MAX_INTEGER, MOST_LAYERS = 2**31 - 1, 10_000
"""More than any model has, and little enough to count with."""
LARGEST = math.nextafter(math.inf, 0.0)

_ACTIVATIONS: dict[str, Literal["silu"] | PlainActivation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
GATED: dict[str, Activation] = {
    "silu": "silu_mul",
    "gelu": "gelu_mul",
    "gelu_tanh": "gelu_tanh_mul",
    "relu2": "relu2_mul",
}
_DTYPES = ("float32", "bfloat16", "float16")


def integer(hf: HFConfig, *names: str, default: int | None = None) -> int:
    """Return the positive integer under the last of `names` that is set."""
    name, value = _stated(hf, names, default)
    most = MOST_LAYERS if name in ("num_hidden_layers", "n_layer") else MAX_INTEGER
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise wrong(name, value, f"a positive integer up to {most}")
    return value


def optional(hf: HFConfig, name: str, default: int | None) -> int | None:
    """Return the positive integer under `name`; `default` if it is absent, None if it is null."""
    if hf.get(name, default) is None:
        return None
    return integer(hf, name, default=default)


def whole(hf: HFConfig, name: str, default: int) -> int:
    """Return the integer under `name`, which may be 0."""
    value = hf.get(name)
    return 0 if (default if value is None else value) == 0 else integer(hf, name, default=default)


def number(hf: HFConfig, *names: str, default: float | None = None) -> float:
    """Return the positive finite number under the last of `names` that is set."""
    name, value = _stated(hf, names, default)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0 < value <= LARGEST:
        raise wrong(name, value, "a positive number")
    return float(value)


def factor(hf: HFConfig, name: str) -> float | None:
    """Return a multiplier; None if it is 1 or absent."""
    found = number(hf, name, default=1.0)
    return None if found == 1.0 else found


def boolean(hf: HFConfig, name: str, *, default: bool) -> bool:
    _, value = _stated(hf, (name,), default)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def attention_bias(
    hf: HFConfig, name: str = "attention_bias", *, default: bool = False
) -> dict[str, Any]:
    """Return the fields that say whether all products of attention have biases."""
    return dict.fromkeys(("qkv_bias", "output_bias"), boolean(hf, name, default=default))


def biases(there: bool) -> dict[str, Any]:
    """Return the fields that say whether attention's and feed-forwards' products have biases."""
    return dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), there)


def flag(hf: HFConfig, name: str, *, default: bool) -> bool:
    """Return the boolean under `name`; null is false, as Transformers reads some."""
    return False if name in hf and hf[name] is None else boolean(hf, name, default=default)


def activation(hf: HFConfig, name: str, default: str) -> Literal["silu"] | PlainActivation:
    _, value = _stated(hf, (name,), default)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise unsupported(name, value, f"known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def plain_activation(hf: HFConfig, name: str, default: str) -> PlainActivation:
    """Return the activation of a feed-forward without a gate."""
    found = activation(hf, name, default)
    if found == "silu":
        raise unsupported(name, hf[name], "Quire computes it with a gate only")
    return found


def only(hf: HFConfig, name: str, supported: Any, why: str) -> None:
    """Refuse a model whose field `name` is set to anything but `supported`."""
    if hf.get(name) is not None and hf[name] != supported:
        raise unsupported(name, hf[name], f"Quire computes only {supported!r} ({why})")


def dtype(hf: HFConfig) -> str:
    """Return the checkpoint's dtype; float32 if the config does not state one."""
    name, value = _stated(hf, ("torch_dtype", "dtype"), "float32")
    value = str(value).removeprefix("torch.")
    if value not in _DTYPES:
        raise unsupported(name, value, f"known: {', '.join(_DTYPES)}")
    return value


def token_ids(hf: HFConfig, name: str, default: int | None = None) -> tuple[int, ...]:
    """Return the token ids under `name`: one, a list of them, or none if it is null.

    An absent field means `default`, unless that is beyond the vocabulary.
    """
    if default is not None and name not in hf and default < integer(hf, "vocab_size"):
        return (default,)
    value = hf.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token > MAX_INTEGER:
            raise wrong(name, value, "a token id or a list of them")
    if any(token < 0 for token in ids):
        logger.warning("config.json: %s is %r; a negative id is no token.", name, value)
    return tuple(token for token in ids if token >= 0)


def bos_token_id(hf: HFConfig, default: int | None = None) -> int | None:
    return next(iter(token_ids(hf, "bos_token_id", default)), None)


def heads(
    hf: HFConfig, hidden_size: int, head_dim: int | None, kv_heads: int | None = None
) -> tuple[int, int, int]:
    """Return (query heads, key-value heads, head_dim).

    Args:
        head_dim: None is hidden_size / heads.
        kv_heads: what an absent `num_key_value_heads` means; None is one per query head.
    """
    query = integer(hf, "num_attention_heads")
    kv = optional(hf, "num_key_value_heads", kv_heads) or query
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


def shape(
    hf: HFConfig, head_dim: int | None = None, kv_heads: int | None = None, inner: str = ""
) -> dict[str, Any]:
    """Return the fields that most architectures have under the same names.

    Args:
        hf: its `model_type` is the architecture's key in `models.registry`.
        head_dim, kv_heads: see `heads`.
        inner: another name of `intermediate_size`.
    """
    only(hf, "per_layer_config", None, "layers that are alike")
    hidden_size = integer(hf, "hidden_size")
    query, kv, head_dim = heads(hf, hidden_size, head_dim, kv_heads)
    return {
        "architecture": hf["model_type"],
        "vocab_size": integer(hf, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": integer(hf, inner or "intermediate_size"),
        "num_hidden_layers": integer(hf, "num_hidden_layers"),
        "num_attention_heads": query,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "max_position_embeddings": integer(hf, "max_position_embeddings"),
        "dtype": dtype(hf),
    }


def layer_kinds(
    types: Any,
    layers: int,
    kinds: Mapping[str, SubLayerKind],
    field: str = "layer_types",
    rest: tuple[SubLayerKind, ...] = ("mlp",),
) -> tuple[tuple[SubLayerKind, ...], ...]:
    """Return the sub-layers of each layer.

    Args:
        types: of `field`, one name per layer.
        kinds: name → what mixes tokens there.
        rest: sub-layers behind it.

    Raises:
        CheckpointError: there are not as many names as layers, or a name is unknown.
    """
    if not isinstance(types, list) or len(types) != layers:
        raise wrong(field, types, f"a list of {layers} names")
    for name in types:
        if not isinstance(name, str) or name not in kinds:
            raise wrong(field, name, f"one of {', '.join(kinds)}")
    return tuple((kinds[name], *rest) for name in types)


def layer_numbers(hf: HFConfig, name: str) -> list[int] | None:
    """Return the list of layers under `name`; None if it is absent."""
    found = hf.get(name)
    if found is not None and not (isinstance(found, list) and all(type(i) is int for i in found)):
        raise wrong(name, found, "a list of layer numbers")
    return found


def table(hf: HFConfig, name: str) -> dict[str, Any]:
    """Return the table under `name`, empty if absent."""
    found = hf.get(name) or {}
    if not isinstance(found, dict):
        raise wrong(name, found, "a table")
    return found


def _stated(hf: HFConfig, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
    """Return the last of `names` that is set, as Transformers chooses, and its value; else
    `default`.
    """
    stated = [name for name in names if hf.get(name) is not None]
    if len({str(hf[name]) for name in stated}) > 1:
        both = " and ".join(f"{name} as {hf[name]!r}" for name in stated)
        logger.warning("config.json states %s, two names of one field.", both)
    if stated:
        return stated[-1], hf[stated[-1]]
    if default is None:
        raise CheckpointError(
            f"config.json: {names[0]} is missing.",
            fix="Take the config.json that was published with the weights.",
            param=names[0],
        )
    return names[0], default


def unsupported(name: str, value: Any, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"config.json: {name} is {value!r}; {what}.", param=name)


def wrong(name: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(f"config.json: {name} is {value!r}; it must be {wanted}.", param=name)
