"""AutoRound (Cheng and others 2023): the layouts of GPTQ and AWQ under another name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quire.quant.awq import awq_method
from quire.quant.fields import Fields, Uniform
from quire.quant.gptq import GptqMethod

_LAYOUTS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round": "gptq_v2",
    "auto_round:auto_awq": "awq",
}
_DENSE_BITS = {16: True, 32: True}
_OWN = ("packing_format", "extra_config", "data_type", "act_bits", "act_dynamic", "act_sym",
        "act_data_type", "act_group_size", "super_bits", "super_group_size")  # fmt: skip


def auto_round_method(config: Mapping[str, Any]) -> GptqMethod | Uniform:
    """Return the method of a `quantization_config` with quant_method auto-round.

    Integers have one of four layouts. `extra_config` names layers that are dense or have other
    bits.
    """
    fields = Fields(config)
    layout = fields.choice("packing_format", _LAYOUTS, "auto_round:auto_gptq")
    fields.choice("data_type", {"int": True}, "int")
    fields.choice("act_bits", _DENSE_BITS, 16)
    table = {name: value for name, value in config.items() if name not in _OWN}
    layers = dict(
        Fields(fields.raw("extra_config", {}), "quantization_config.extra_config").items()
    )
    dense = [name for name, layer in layers.items() if layer.integer("bits", 0) in _DENSE_BITS]
    found: GptqMethod | Uniform
    if layout == "awq":
        for name in layers.keys() - set(dense):
            layers[name].choice("bits", {4: True} | _DENSE_BITS, 4)
        found = awq_method(table | {"modules_to_not_convert": dense})
    else:
        dynamic: dict[str, Any] = {"-:" + re.escape(name): {} for name in dense}
        for name in layers.keys() - set(dense):
            changes: Mapping[str, Any] = config["extra_config"][name]
            dynamic[re.escape(name)] = {n: v for n, v in changes.items() if n not in _OWN}
        found = GptqMethod(table | {"checkpoint_format": layout, "dynamic": dynamic})
    found.name = "auto-round"
    return found
