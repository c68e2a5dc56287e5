"""compressed-tensors: recipes for groups of layers, each with its own types and strategies.

    pack-quantized    weight_packed I32 [N, K · bits / 32], weight_scale [N, G], weight_shape [2],
                      weight_zero_point I32 [N · bits / 32, G], weight_g_idx I32 [K]
    int-quantized     weight I8 [N, K] of 2 to 8 bits, weight_scale [N, 1], [1] or [N, G],
                      weight_zero_point I8; input_scale and input_zero_point if activations are
                      static
    float-quantized   weight F8_E4M3 [N, K], weight_scale [N, 1], [1], [N, G] or one per block
    nvfp4-pack-quantized, mxfp4-pack-quantized: see `quant.fp4`

    W[n, k] = weight_scale · (code − zero)

Activations of 8 bits use a symmetric calibrated scale if there is one. Otherwise they are quantized
row by row, which is as exact. In recipes for weights only, activations stay floats, except with
4-bit weights, whose products are always W4A8 here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from quire.core.dtypes import FLOAT8_E4M3, HostArray
from quire.core.errors import CheckpointError
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.bits import unpack_rows
from quire.quant.fields import Fields
from quire.quant.fp4 import Mxfp4, Nvfp4
from quire.quant.fp8 import Fp8
from quire.quant.gptq import Words
from quire.quant.scheme import FLOATS, Scheme, Stored
from quire.system.records import dataclass

_STRATEGIES = {name: name for name in ("tensor", "channel", "group", "block", "tensor_group")}
_FORMATS = {
    name: name
    for name in (
        "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision",
        "dense",
    )
}  # fmt: skip
_SCALAR = ((), (1,), (1, 1))


class PackedInt(Words):
    """Codes of 2 to 8 `bits` in words. `group` 0 is one scale per row."""

    __slots__ = ()

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        groups = -(-columns // (self.group or columns))
        tensors = {
            "weight_packed": Stored(("I32",), ((rows, -(-columns * self.bits // 32)),)),
            "weight_scale": Stored(FLOATS, ((rows, groups), *(() if self.group else _SCALAR))),
            "weight_shape": Stored(("I64", "I32"), ((2,),), optional=True, raw=True),
        }
        if self.act_order:
            tensors["weight_g_idx"] = Stored(("I32", "I64"), ((columns,),), raw=True)
        if not self.symmetric:
            words = -(-rows * self.bits // 32)
            tensors["weight_zero_point"] = Stored(("I32",), ((words, groups),), raw=True)
        return tensors

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        shape = tensors.get("weight_shape")
        if shape is not None and shape.tolist() != [rows, columns]:
            raise ValueError(f"weight_shape is {shape.tolist()}")
        codes = unpack_rows(tensors["weight_packed"], self.bits, columns)
        scale = _by_row(tensors["weight_scale"], rows)
        if self.symmetric:
            zero: HostArray = np.full_like(scale, 1 << (self.bits - 1))
        else:
            zero = unpack_rows(tensors["weight_zero_point"].T, self.bits, rows).T
        return self.weight(codes, scale, zero, tensors.get("weight_g_idx"))


@dataclass(frozen=True, slots=True)
class PlainInt:
    """One byte per weight. `group` 0 is one scale per row, or one for all."""

    group: int = 0
    symmetric: bool = True
    static: bool = False
    float_activations: bool = False

    def form(self, columns: int) -> Form:
        second: Literal["", "zero"] = "" if self.symmetric else "zero"
        group, wide = self.group or columns, self.float_activations
        return Form("int8", 8, group, second, float_activations=wide)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        groups = -(-columns // (self.group or columns))
        shapes = ((rows, groups), *(() if self.group else ((rows,), *_SCALAR)))
        tensors = {
            "weight": Stored(("I8",), ((rows, columns),), raw=True),
            "weight_scale": Stored(FLOATS, shapes),
            "input_scale": Stored(FLOATS, _SCALAR, optional=not self.static),
            "input_zero_point": Stored(("I8", "I32", "I64"), _SCALAR, optional=True, raw=True),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = Stored(("I8", "I32"), shapes, raw=True)
        return tensors

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        zero = None
        if not self.symmetric:
            zero = _by_row(tensors["weight_zero_point"].astype(np.float32), rows)
        scale, group = _by_row(tensors["weight_scale"], rows), self.group or columns
        static = tensors.get("input_scale") if self.static else None
        shift = tensors.get("input_zero_point")
        if shift is not None and shift.any():
            static = None  # asymmetric activations are quantized row by row
        input_scale = None if static is None else float(static.reshape(()))
        return QuantizedWeight(tensors["weight"], 8, scale, group, zero, input_scale=input_scale)


@dataclass(frozen=True, slots=True)
class GroupedFloat:
    """8-bit floats with one scale per `group` of columns."""

    group: int

    def form(self, columns: int) -> Form:
        return Form("float8_e4m3fn", 8, self.group)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        return {
            "weight": Stored(("F8_E4M3",), ((rows, columns),), raw=True),
            "weight_scale": Stored((*FLOATS, "U8"), ((rows, -(-columns // self.group)),)),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        codes, scale = tensors["weight"].view(FLOAT8_E4M3), tensors["weight_scale"]
        return QuantizedWeight(codes, 8, scale, self.group)


def _by_row(numbers: HostArray, rows: int) -> HostArray:
    """Return numbers per row and group [rows, G] from one for all, or from one axis."""
    if numbers.ndim < 2:
        numbers = numbers.reshape(-1, 1)
    return np.ascontiguousarray(np.broadcast_to(numbers, (rows, numbers.shape[1])))


@dataclass(frozen=True, slots=True)
class _Group:
    targets: tuple[str, ...]
    scheme: Scheme | None


class CompressedTensorsMethod:
    """`quantization_config` of quant_method compressed-tensors."""

    name = "compressed-tensors"

    def __init__(self, config: Mapping[str, Any]) -> None:
        fields = Fields(config)
        form = fields.choice("format", _FORMATS)
        self._ignore = _patterns(fields, "ignore")
        self._groups = [
            _read_group(group, form) for _, group in fields.table("config_groups").items()
        ]
        for name in ("sparsity_config", "transform_config"):
            table = fields.raw(name, {})
            if not isinstance(table, Mapping):
                raise fields.wrong(name, "a table")
            if table and table.get("format", "dense") != "dense":
                raise fields.unsupported(name, "Quire reads no sparse or rotated weights")
            if name == "transform_config" and table.get("config_groups"):
                raise fields.unsupported(name, "Quire reads no rotated weights")
        fields.skip(
            "quant_method", "quantization_status", "global_compression_ratio", "kv_cache_scheme",
            "version", "config_groups", "decompress_weights", "run_compressed",
        )  # fmt: skip
        fields.done()

    def scheme(self, layer: str) -> Scheme | None:
        if any(_matches(layer, target) for target in self._ignore):
            return None
        for names_it in (True, False):  # a layer's name has priority over its class
            for group in self._groups:
                if any(_matches(layer, t) and (t == "Linear") != names_it for t in group.targets):
                    return group.scheme
        return None


def _patterns(fields: Fields, name: str) -> tuple[str, ...]:
    found = fields.strings(name)
    for pattern in found:
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            if pattern.startswith("re:"):
                raise CheckpointError(
                    f"config.json: quantization_config has the pattern {pattern!r}: {error}.",
                    param=f"quantization_config.{name}",
                ) from None
    return found


def _matches(layer: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], layer) is not None
    return target in ("Linear", layer)


def _read_group(fields: Fields, form: str) -> _Group:
    targets = _patterns(fields, "targets")
    form = fields.choice("format", _FORMATS, form)
    if "output_activations" in fields:
        raise fields.unsupported("output_activations", "Quire quantizes no outputs")
    fields.skip("output_activations")
    if "weights" not in fields:
        fields.skip("weights", "input_activations")
        return _Group(targets, None)
    activations = fields.table("input_activations") if "input_activations" in fields else None
    scheme = _scheme(fields.table("weights"), activations, form)
    fields.skip("weights", "input_activations")
    fields.done()
    return _Group(targets, scheme)


def _scheme(weights: Fields, activations: Fields | None, form: str) -> Scheme:
    kind = weights.choice("type", {"int": "int", "float": "float"}, "int")
    bits = weights.integer("num_bits")
    size = weights.raw("group_size", None)
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.choice("strategy", _STRATEGIES, inferred)
    grouped = strategy in ("group", "tensor_group")
    group = weights.group_size() if grouped else 0
    symmetric = weights.boolean("symmetric", default=True)
    order = weights.choice(
        "actorder",
        {"": False, False: False, "weight": False, "static": False, "group": True,
         "dynamic": True, True: True},
        "",
    )  # fmt: skip
    block = weights.raw("block_structure", None)
    weights.skip(
        "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype", "is_mse", "group_size"
    )
    weights.done()
    static = _static(activations)
    if kind == "float" and bits == 4:
        if group not in (16, 32) or not symmetric:
            raise weights.unsupported("group_size", "floats of 4 bits come in groups of 16 or 32")
        return Mxfp4() if group == 32 else Nvfp4()
    if kind == "float":
        if bits != 8 or not symmetric:
            raise weights.unsupported("num_bits", "Quire reads symmetric floats of 4 and 8 bits")
        if strategy == "block":
            return Fp8(block=_structure(weights, block))
        if grouped and group:
            return GroupedFloat(group)
        return Fp8(float_activations=activations is None)
    if strategy == "block":
        raise weights.unsupported("strategy", "integers come by tensor, channel or group")
    if not 2 <= bits <= 8:
        raise weights.unsupported("num_bits", "integers have 2 to 8 bits")
    if form == "pack-quantized":
        return PackedInt(bits, group, symmetric, order)
    return PlainInt(group, symmetric, static, float_activations=activations is None)


def _static(activations: Fields | None) -> bool:
    """Return whether activations have a symmetric calibrated scale."""
    if activations is None:
        return False
    dynamic = activations.choice("dynamic", {True: True, False: False, "local": True}, False)
    activations.choice("type", {"int": True, "float": True}, "int")
    if activations.integer("num_bits", 8) not in (4, 8, 16):
        raise activations.unsupported("num_bits", "Quire knows activations of 4, 8 and 16 bits")
    symmetric = activations.boolean("symmetric", default=True)
    activations.skip(
        "strategy", "group_size", "observer", "observer_kwargs", "block_structure", "actorder",
        "scale_dtype", "zp_dtype", "is_mse",
    )  # fmt: skip
    activations.done()
    return not dynamic and symmetric


def _structure(weights: Fields, block: Any) -> tuple[int, int]:
    if isinstance(block, str):
        block = [int(extent) for extent in block.split("x") if extent.isdigit()]
    return weights.extents("block_structure", block, "two positive integers")
