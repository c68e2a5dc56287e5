"""Adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

    base_model.model.<module of the model>.lora_A.weight   [rank, in]
    base_model.model.<module of the model>.lora_B.weight   [out, rank]

Quire refuses adapters that need anything else, and names it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.json_file import read_json
from quire.checkpoint.safetensors import SafetensorsFile
from quire.core.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from quire.quant.bits import float32
from quire.system.records import dataclass

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
_FLOATS = ("F32", "F16", "BF16")
_REFUSED = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "arrow_config",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
)
"""Unsupported fields that would change the result; each must be unset."""
_OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights that change the model's own weights as well."""


@dataclass(frozen=True, slots=True)
class LoRATarget:
    """A linear layer of the model that adapters may change: [rows, columns].

    Attributes:
        stem: the merged layer that contains it, such as "layers.0.attn.qkv".
        part: its index in the merged layer.
    """

    stem: str
    part: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Delta:
    """An adapter's change of a layer's weight, or a rank's part of it: scale · Bᵀ · A, float32.

    Attributes:
        module: the layer's name in the model.
        a: [rank, columns].
        b: [rank, rows].
    """

    module: str
    target: LoRATarget
    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """The content of a folder; `digest` covers the values and all that affects their meaning."""

    deltas: list[Delta]
    digest: bytes


def read_adapter(folder: Path, targets: Mapping[str, LoRATarget], max_rank: int) -> Adapter:
    """Return the adapter in `folder`.

    Args:
        targets: name of a module in the model → its layer and part.

    Raises:
        ModelNotFoundError: there is none.
        UnsupportedModelError: it needs something that Quire does not compute, or changes a layer
            that cannot have adapters; the error names the field or the module.
        CheckpointError: its rank is too high, or it is damaged; the error names field or tensor.
    """
    if not (folder / CONFIG).is_file():
        raise ModelNotFoundError(
            f"{folder.name} holds no {CONFIG}.", fix="Name the folder that PEFT saved."
        )
    config = read_json(folder / CONFIG)
    _check_config(config)
    if not (folder / WEIGHTS).is_file():
        raise ModelNotFoundError(
            f"{folder.name} holds no {WEIGHTS}.",
            fix="Save the adapter with safe_serialization=True; pickled weights are not read.",
        )
    file = SafetensorsFile(folder / WEIGHTS)
    digest = hashlib.sha256()
    halves: dict[str, dict[str, str]] = {}
    for name, info in file.tensors.items():
        match = _TENSOR.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            raise UnsupportedModelError(
                f"{WEIGHTS}: tensor {name!r} is neither a lora_A nor a lora_B of a linear layer."
            )
        if info.dtype not in _FLOATS:
            raise CheckpointError(
                f"{WEIGHTS}: tensor {name!r} has dtype {info.dtype}; wanted {', '.join(_FLOATS)}."
            )
        halves.setdefault(match["module"], {})[match["half"]] = name
        digest.update(f"{name} {info.dtype} {info.shape}".encode())
        digest.update(file.read(name).reshape(-1).view(np.uint8).data)
    if not halves:
        raise CheckpointError(f"{WEIGHTS} holds no tensors.")
    deltas = []
    for module in sorted(halves):
        if module not in targets:
            raise _unknown(module, targets)
        rank = _rank(config, module, max_rank)
        delta = _delta(file, config, module, rank, halves[module], targets[module])
        digest.update(f"{module} {delta.scale!r}".encode())
        deltas.append(delta)
    _check_modules(config, targets, halves)
    return Adapter(deltas, digest.digest())


def _rank(config: Mapping[str, Any], module: str, most: int) -> int:
    rank = _pattern(config, "rank_pattern", module, _integer(config, "r"))
    if type(rank) is not int or rank < 1:
        raise CheckpointError(f"{CONFIG}: rank_pattern has {rank!r} for {module}.")
    if rank > most:
        raise CheckpointError(
            f"{CONFIG}: r is {rank}; adapters up to rank {most} are served here.",
            fix=f"Start the engine with --max-lora-rank {rank}.",
            param="--max-lora-rank",
        )
    return rank


def _delta(
    file: SafetensorsFile,
    config: Mapping[str, Any],
    module: str,
    rank: int,
    halves: Mapping[str, str],
    target: LoRATarget,
) -> Delta:
    found = {}
    for half, shape in (("A", (rank, target.columns)), ("B", (target.rows, rank))):
        if half not in halves:
            raise CheckpointError(f"{WEIGHTS}: {module} has no lora_{half}.")
        info = file.tensors[halves[half]]
        if info.shape != shape:
            raise CheckpointError(
                f"{WEIGHTS}: tensor {info.name!r} has the shape {list(info.shape)}; expected "
                f"{list(shape)}.",
                fix="The adapter belongs to another model, or the file to another adapter.",
            )
        values = float32(file.read(info.name), info.dtype)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{WEIGHTS}: tensor {info.name!r} holds NaN or infinite values.")
        found[half] = values
    alpha = _pattern(config, "alpha_pattern", module, config.get("lora_alpha", 8))
    if type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(f"{CONFIG}: lora_alpha is {alpha!r}; it must be a number.")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Delta(module, target, found["A"], np.ascontiguousarray(found["B"].T), scale)


def _check_config(config: Mapping[str, Any]) -> None:
    """Refuse adapters that are not plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(f"{CONFIG}: peft_type is {kind!r}; only LORA is computed.")
    for name in _REFUSED:
        if config.get(name):
            raise UnsupportedModelError(
                f"{CONFIG}: {name} is {config[name]!r}; adapters with it are not supported."
            )
    if config.get("bias", "none") != "none":
        raise UnsupportedModelError(
            f"{CONFIG}: bias is {config['bias']!r}; only adapters without biases are supported."
        )
    how = config.get("init_lora_weights")
    if isinstance(how, str) and how.lower().startswith(_OTHER_BASES):
        raise UnsupportedModelError(
            f"{CONFIG}: init_lora_weights is {how!r}, which changes the model's own weights too.",
            fix="Convert the adapter to plain LoRA when it is saved.",
        )
    _integer(config, "r")


def _check_modules(
    config: Mapping[str, Any], targets: Mapping[str, LoRATarget], modules: Collection[str]
) -> None:
    """Refuse target_modules that do not agree with the tensors.

    PEFT ignores names that the model lacks, and tensors of modules that are not named. An
    expression, an empty list, and modules that are excluded leave to the tensors what is changed.
    """
    wanted = config.get("target_modules")
    if isinstance(wanted, str):
        return
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise CheckpointError(f"{CONFIG}: target_modules is {wanted!r}; wanted a list of names.")
    if not wanted:
        return
    if not any(_is_meant(name, module) for name in wanted for module in targets):
        raise _unknown(wanted[0], targets)
    for module in modules:
        if not any(_is_meant(name, module) for name in wanted):
            raise CheckpointError(
                f"{WEIGHTS} has tensors of {module!r}, which is none of the target modules "
                f"{', '.join(wanted)} of {CONFIG}."
            )
    for name in () if config.get("exclude_modules") else wanted:
        there, changed = (any(_is_meant(name, m) for m in each) for each in (targets, modules))
        if there and not changed:
            raise CheckpointError(
                f"{CONFIG} has the target module {name!r}, {WEIGHTS} nothing for it."
            )


def _is_meant(name: str, module: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _unknown(name: str, targets: Mapping[str, LoRATarget]) -> UnsupportedModelError:
    known = dict.fromkeys(module.rpartition(".")[2] for module in targets)
    return UnsupportedModelError(
        f"The adapter changes the module {name!r}; in this model {', '.join(known)} may be changed."
    )


def _integer(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{CONFIG}: {name} is {value!r}; it must be a positive integer.")
    return value


def _pattern(config: Mapping[str, Any], name: str, module: str, default: Any) -> Any:
    """Return the value of the first key that ends the module's name. PEFT treats keys as regular
    expressions."""
    patterns = config.get(name) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{CONFIG}: {name} is {patterns!r}; wanted a table.")
    for key, value in patterns.items():
        if _matches(key, module, name):
            return value
    return default


def _matches(key: str, module: str, name: str) -> bool:
    """Return whether a key of rank_pattern or alpha_pattern names this module.

    Regular expressions are refused, because they could run for ever.
    """
    plain = key.removeprefix("^")
    if re.fullmatch(r"[\w.]+", plain) is None:
        raise UnsupportedModelError(
            f"{CONFIG}: {name} has the expression {key!r}; only names of modules are supported."
        )
    return module == plain or (plain == key and module.endswith(f".{key}"))
