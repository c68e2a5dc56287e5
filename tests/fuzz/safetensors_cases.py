"""Safetensors files that somebody has tampered with, a function of a seed."""

from __future__ import annotations

import json
import math
import random
from typing import Any

from tests.fuzz.json_cases import changed, tampered_text

_ITEM = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4, "U8": 1, "I64": 8}
_TENSORS = {
    "w": ("F32", [3, 4]),
    "w.qweight": ("I32", [2, 8]),
    "w.scales": ("F16", [2, 8]),
    "w.weight_packed": ("U8", [4, 6]),
    "w.weight_scale": ("BF16", [4, 1]),
    "fp8": ("F8_E4M3", [4, 4]),
    "fp8.e5m2": ("F8_E5M2", [2, 2]),
    "g_idx": ("I64", [4]),
    "scalar": ("F32", []),
    "empty": ("F32", [0, 7]),
}
_LENGTHS = (0, 1, 2, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def header_and_data() -> tuple[dict[str, Any], bytes]:
    """A sound file's."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "tied": "w"}}
    at = 0
    for name, (dtype, shape) in _TENSORS.items():
        stop = at + _ITEM[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, stop]}
        at = stop
    return header, bytes(i % 251 for i in range(at))


def packed(header: bytes, data: bytes, length: int | None = None) -> bytes:
    stated = len(header) if length is None else length
    return stated.to_bytes(8, "little") + header + data


def tampered_safetensors(dice: random.Random) -> bytes:
    """A file with at least one fault, though some make no difference to a reader."""
    header, data = header_and_data()
    text = json.dumps(header).encode()
    how = dice.randrange(10)
    if how == 0:
        whole = packed(text, data)
        return whole[: dice.randrange(len(whole))]
    if how == 1:
        whole = packed(text, data)
        length = dice.choice((*_LENGTHS, len(text) + 1, len(text) - 1, len(whole), len(whole) - 8))
        return packed(text, data, length)
    if how == 2:
        return packed(text, data + bytes(dice.randint(1, 9)))
    if how == 3:
        return packed(tampered_text(dice, text), data)
    if how == 4:
        return _doubled(dice, header, data)
    if how in (5, 6):
        return _misplaced(dice, header, data)
    if how == 7:
        raw = bytearray(packed(text, data))
        for _ in range(dice.randint(1, 8)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        return bytes(raw)
    for _ in range(dice.randint(1, 3)):
        header = changed(dice, header)
    return packed(json.dumps(header).encode(), data)


def _doubled(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    """A name twice, which a table in Python cannot have."""
    name = dice.choice(list(header))
    again = json.dumps({name: header[dice.choice(list(header))]}).encode()
    return packed(json.dumps(header).encode()[:-1] + b"," + again[1:], data)


def _misplaced(dice: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    """Tensors that overlap, leave holes, are turned round, or have a shape of another size."""
    names = [name for name in header if name != "__metadata__"]
    entry = header[dice.choice(names)]
    other = header[dice.choice(names)]
    how = dice.randrange(5)
    if how == 0:
        entry["data_offsets"] = other["data_offsets"]
    elif how == 1:
        entry["data_offsets"] = entry["data_offsets"][::-1]
    elif how == 2:
        shift = dice.choice((1, 4, -4, 2**32, 2**63))
        entry["data_offsets"] = [at + shift for at in entry["data_offsets"]]
    elif how == 3:
        large = (0, 1, 2**31, 2**32, 2**63, 2**64, 10**25)
        entry["shape"] = [dice.choice(large) for _ in range(dice.randint(0, 9))]
        if dice.random() < 0.5:
            start = entry["data_offsets"][0]
            entry["data_offsets"] = [
                start,
                start + _ITEM[entry["dtype"]] * math.prod(entry["shape"]),
            ]
    else:
        entry["dtype"] = dice.choice((*_ITEM, "F64", "BOOL", "F4", "f32", "C64"))
    return packed(json.dumps(header).encode(), data)
