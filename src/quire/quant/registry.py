"""Methods of quantization by the `quant_method` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.registry import Registry
from quire.quant.scheme import Method

METHODS = Registry(
    "quantization method",
    {
        "auto-round": "quire.quant.auto_round:auto_round_method",
        "awq": "quire.quant.awq:awq_method",
        "bitnet": "quire.quant.bitnet:bitnet_method",
        "bitsandbytes": "quire.quant.bitsandbytes:bitsandbytes_method",
        "compressed-tensors": "quire.quant.compressed_tensors:CompressedTensorsMethod",
        "fbgemm_fp8": "quire.quant.fp8:fp8_method",
        "fp8": "quire.quant.fp8:fp8_method",
        "gptq": "quire.quant.gptq:GptqMethod",
        "modelopt": "quire.quant.fp4:modelopt_method",
        "mxfp4": "quire.quant.fp4:Mxfp4Method",
        "mxfp8": "quire.quant.fp8:fp8_method",
        "quark": "quire.quant.quark:QuarkMethod",
    },
)
GGUF = "gguf"
"""The method of files whose tensors define their own quantization."""


def quantization_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return config.json's `quantization_config` with `quant_method`; None for dense weights.

    Raises:
        CheckpointError: it is not a table, or names no method.
    """
    text = hf_config.get("text_config")
    tables = [hf_config, text] if isinstance(text, Mapping) else [hf_config]
    names = ("quantization_config", "compression_config")
    config = next((found for table in tables for name in names if (found := table.get(name))), None)
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise CheckpointError(
            f"config.json: quantization_config is {config!r}; it must be a table.",
            param="quantization_config",
        )
    if config.get("quant_method") is not None:
        return config
    if "load_in_4bit" in config or "load_in_8bit" in config:
        return {**config, "quant_method": "bitsandbytes"}
    if "config_groups" in config:
        return {**config, "quant_method": "compressed-tensors"}
    raise CheckpointError(
        "config.json: quantization_config.quant_method is missing.",
        fix=f"Quire reads {', '.join(METHODS.names())}.",
        param="quantization_config.quant_method",
    )


def method(config: Mapping[str, Any]) -> Method:
    """Return the method of a `quantization_config`.

    Raises:
        UnsupportedModelError: Quire does not read it; the message lists those that it reads.
        CheckpointError: a field is missing or malformed; the message names it.
    """
    name = config["quant_method"]
    if name not in METHODS:
        raise UnsupportedModelError(
            f"config.json: the weights are quantized by {name!r}.",
            fix=f"Quire reads {', '.join(METHODS.names())}, and GGUF files; or use the "
            "unquantized model.",
            param="quantization_config.quant_method",
        )
    found: Method = METHODS.load(name)(config)
    return found
