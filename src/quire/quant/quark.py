"""AMD Quark: 8-bit floats, and MXFP4.

    fp8_e4m3, fp8_e5m2   weight F8 [N, K], weight_scale one for all or [N]
    fp4                  weight U8 [N, K / 2], weight_scale U8 [N, K / 32]: powers of two (E8M0)

Settings of activations are not read: they follow the weight's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from re import match
from typing import Any

from quire.quant.fields import Fields
from quire.quant.fp4 import Mxfp4
from quire.quant.fp8 import Fp8
from quire.quant.scheme import Scheme

_FLOATS = {"fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "fp4": "fp4"}
_ONLINE = ("online_r1_rotation", "r3", "r4")
"""Rotations that activations need while the model runs."""
_ACTIVATIONS = ("input_tensors", "output_tensors", "target_device")


class QuarkMethod:
    """`quantization_config` of quant_method quark."""

    name = "quark"

    def __init__(self, config: Mapping[str, Any]) -> None:
        fields = Fields(config)
        self._dense = fields.strings("exclude")
        self._scheme = _layer(fields.table("global_quant_config"))
        self._layers: list[tuple[str, Scheme | None]] = []
        if "layer_quant_config" in fields:
            tables = fields.table("layer_quant_config").items()
            self._layers = [(pattern, _layer(table)) for pattern, table in tables]
        if fields.raw("layer_type_quant_config", {}):
            raise fields.unsupported("layer_type_quant_config", "Quire reads names of layers")
        steps = fields.raw("algo_config", [])
        for step in steps if isinstance(steps, list) else [steps]:
            if isinstance(step, Mapping) and any(step.get(name) for name in _ONLINE):
                raise fields.unsupported("algo_config", "Quire rotates no activations")
        if "export" in fields:
            export = fields.table("export")
            export.choice("weight_format", {"real_quantized": True}, "real_quantized")
        fields.skip(
            "quant_method", "quant_mode", "version", "export", "softmax_quant_spec",
            "kv_cache_quant_config", "kv_cache_post_rope",
        )  # fmt: skip
        fields.done()

    def scheme(self, layer: str) -> Scheme | None:
        if any(_names(pattern, layer) for pattern in self._dense):
            return None
        found = [scheme for pattern, scheme in self._layers if _names(pattern, layer)]
        return found[0] if found else self._scheme


def _names(pattern: str, layer: str) -> bool:
    if pattern.startswith("re:"):
        return match(pattern[3:], layer) is not None
    return fnmatchcase(layer, pattern)


def _layer(fields: Fields) -> Scheme | None:
    """Return the scheme of a layer's configuration; None if its weight is dense."""
    fields.skip(*_ACTIVATIONS)
    if "bias" in fields:
        raise fields.unsupported("bias", "Quire reads dense biases")
    if "weight" not in fields:
        fields.skip("weight", "bias")
        fields.done()
        return None
    if isinstance(fields.raw("weight"), list):
        raise fields.unsupported("weight", "Quire reads weights that are rounded once")
    weight = fields.table("weight")
    dtype = weight.choice("dtype", _FLOATS)
    if dtype == "fp4":
        weight.choice("qscheme", {"per_group": True})
        weight.choice("group_size", {32: True})
        weight.choice("scale_format", {"e8m0": True})
        return Mxfp4("weight", "weight_scale")
    if weight.choice("qscheme", {"per_tensor": False, "per_channel": True}):
        weight.choice("ch_axis", {0: True})
    return Fp8(dtype)
