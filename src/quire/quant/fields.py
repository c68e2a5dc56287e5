"""Read `quantization_config` field by field, so that each error names its field; the method that
most of them describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.quant.scheme import Scheme
from quire.system.records import dataclass

_MISSING: Any = object()
HOW_IT_WAS_MADE = (
    "quant_method", "true_sequential", "damp_percent", "damp_auto_increment", "static_groups",
    "model_name_or_path", "model_file_base_name", "meta", "dataset", "tokenizer", "batch_size",
    "block_name_to_quantize", "module_name_preceding_first_block", "modules_in_block_to_quantize",
    "use_exllama", "disable_exllama", "exllama_config", "max_input_length", "backend",
    "cache_block_outputs", "use_cuda_fp16", "model_seqlen", "pad_token_id", "awq_gemm_checkpoint",
    "mse", "act_group_aware", "hyb_act", "quant_type", "autoround_version", "adapter",
    "offload_to_disk", "offload_to_disk_path", "rotation", "parallel_packing", "device",
    "use_quant_input", "enable_norm_bias_tuning", "iters", "lr", "minmax_lr", "nsamples", "seqlen",
    "enable_minmax_tuning", "enable_quanted_input", "low_gpu_mem_usage", "scale_dtype", "amp",
    "gradient_accumulate_steps", "train_bs", "data_type", "foem", "gptaq", "gptaq_alpha",
    "gptaq_memory_device", "v2", "v2_alpha", "pack_impl", "calculate_w_wq_diff", "failsafe",
    "provider", "to_quant_block_names", "method",
)  # fmt: skip
"""Fields that GPTQModel, AutoAWQ, AutoRound and others write, and that change no number."""


class Fields:
    """The fields of a table in config.json; null counts as absent.

    Raises:
        CheckpointError: from each method, for a field that is missing or malformed.
        UnsupportedModelError: from `choice`, for an unsupported value; from `done`, for a field
            that was not read.
    """

    def __init__(self, table: Any, path: str = "quantization_config") -> None:
        if not isinstance(table, Mapping):
            raise CheckpointError(
                f"config.json: {path} is {_short(table)}; it must be a table.", param=path
            )
        self._table = dict(table)
        self._path = path
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._table.get(name) is not None

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        self._asked.add(name)
        value = self._table.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise CheckpointError(
                f"config.json: {self._path}.{name} is missing.",
                fix="Take the config.json that was published with the weights.",
                param=f"{self._path}.{name}",
            )
        return default

    def integer(self, name: str, default: Any = _MISSING) -> int:
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number")
        return value

    def boolean(self, name: str, *, default: Any = _MISSING) -> bool:
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.raw(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings")
        return tuple(value)

    def choice(self, name: str, known: Mapping[Any, Any], default: Any = _MISSING) -> Any:
        """Return the entry of `known` for the field's value; strings are compared in lower case."""
        value = self.raw(name, default)
        key = value.lower() if isinstance(value, str) else value
        if isinstance(key, (list, dict)) or key not in known:
            raise self.unsupported(name, f"Quire reads {', '.join(map(str, known))}")
        return known[key]

    def group_size(self, name: str = "group_size", default: Any = _MISSING) -> int:
        """Return the number of columns that share a scale; 0 for -1, a whole row."""
        value = self.integer(name, default)
        if value != -1 and (value < 8 or value % 8):
            raise self.wrong(name, "-1 or a multiple of 8")
        return 0 if value == -1 else value

    def extents(self, name: str, value: Any, wanted: str) -> tuple[int, int]:
        """Return the field's `value` if it is two positive integers, which is what is `wanted`."""
        good = isinstance(value, list) and len(value) == 2
        if not good or not all(type(extent) is int and extent > 0 for extent in value):
            raise self.wrong(name, wanted)
        return value[0], value[1]

    def table(self, name: str) -> Fields:
        return Fields(self.raw(name), f"{self._path}.{name}")

    def items(self) -> list[tuple[str, Fields]]:
        """Return all fields, each as a table."""
        self._asked |= set(self._table)
        return [(name, Fields(table, f"{self._path}.{name}"))
                for name, table in self._table.items()]  # fmt: skip

    def skip(self, *names: str) -> None:
        """Accept fields that describe how the weights were made, or settings of other engines."""
        self._asked |= set(names)

    def done(self) -> None:
        for name, value in self._table.items():
            if name not in self._asked and value is not None:
                raise UnsupportedModelError(
                    f"config.json: {self._path}.{name} is {_short(value)}; Quire does not know the "
                    "field, which may change what the weights mean.",
                    fix="Remove the field if the weights do not depend on it.",
                    param=f"{self._path}.{name}",
                )

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"config.json: {self._path}.{name} is {_short(self._table.get(name))}; it must be "
            f"{wanted}.",
            param=f"{self._path}.{name}",
        )

    def unsupported(self, name: str, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"config.json: {self._path}.{name} is {_short(self._table.get(name))}; {why}.",
            param=f"{self._path}.{name}",
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


@dataclass(slots=True)
class Uniform:
    """A method with one scheme for all linear layers but those of `dense` (see `skipped`)."""

    name: str
    usual: Scheme
    dense: tuple[str, ...]

    def scheme(self, layer: str) -> Scheme | None:
        return None if skipped(layer, self.dense) else self.usual


def skipped(layer: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a list of dense modules names the layer, a module around it, or a part of its
    dotted name."""
    return any(f".{pattern.strip('.')}." in f".{layer}." for pattern in patterns)
