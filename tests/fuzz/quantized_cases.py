"""Folders of quantized models in which somebody has tampered with the configuration, the tensors'
descriptions, or the numbers; a function of a seed."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from quire.models.registry import model_config
from tests.fuzz.json_cases import changed
from tests.fuzz.safetensors_cases import packed
from tests.unit.quant.test_checkpoints import CASES, DTYPES, LLAMA, checkpoint

KINDS = ("gptq", "gptq-3", "gptq-act-order", "awq", "fp8-row", "fp8-block", "bnb-nf4", "bnb-int8",
         "nvfp4")  # fmt: skip


@cache
def sound(kind: str) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The configuration, the header and the data of a whole model."""
    said, pack = CASES[kind]
    tensors, _ = checkpoint(model_config(LLAMA), pack)
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": offsets}
        data += raw
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "quantization_config": said}
    return config, header, data


def write(dice: random.Random, folder: Path) -> None:
    """A model with at least one fault, though some make no difference to a reader."""
    config, header, data = sound(dice.choice(KINDS))
    how = dice.randrange(5)
    if how < 2:
        said = config["quantization_config"]
        for _ in range(dice.randint(1, 2)):
            said = changed(dice, said)
        config = config | {"quantization_config": said}
    elif how == 2:
        header = changed(dice, header)
    elif how == 3:
        header = _retyped(dice, header)
    else:
        raw = bytearray(data)
        for _ in range(dice.randint(1, 200)):
            raw[dice.randrange(len(raw))] = dice.choice((0, 0xFF, 0x7F, 0x80, dice.randrange(256)))
        data = bytes(raw)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(packed(json.dumps(header).encode(), data))


def _retyped(dice: random.Random, header: dict[str, Any]) -> dict[str, Any]:
    """A tensor with another type, or shape, of as many bytes."""
    name = dice.choice(list(header))
    entry = dict(header[name])
    same = {"F32": "I32", "I32": "F32", "F16": "BF16", "U8": "I8", "I8": "F8_E5M2", "I64": "F64",
            "F8_E4M3": "U8", "F8_E5M2": "BOOL", "BF16": "F16"}  # fmt: skip
    if dice.random() < 0.5:
        entry["dtype"] = same[entry["dtype"]]
    elif entry["shape"]:
        first, *rest = entry["shape"]
        entry["shape"] = dice.choice(([*rest, first], [1, first, *rest], [first, 1, *rest]))
    return {**header, name: entry}
