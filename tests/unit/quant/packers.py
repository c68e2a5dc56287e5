"""Writers of quantized layers as other tools' are, one loop an index: the tests' own reading of
each format, with the float32 weight that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True)
class Layer:
    """Suffix → tensor, and what they mean, float32 [N, K]."""

    tensors: dict[str, Tensor]
    weight: Array


def stream(codes: list[int], bits: int) -> list[int]:
    """int32 words of which the codes are `bits` bits each, the first lowest."""
    number = sum(code << (bits * i) for i, code in enumerate(codes))
    words = -(-len(codes) * bits // 32)
    values = [(number >> (32 * i)) & 0xFFFFFFFF for i in range(words)]
    return [value - (1 << 32) if value >> 31 else value for value in values]


def int32(words: list[list[int]]) -> Tensor:
    return torch.tensor(words, dtype=torch.int32)


def gptq(
    draw: np.random.Generator, n: int, k: int, *, bits: int = 4, group: int = 32, v2: bool = False,
    symmetric: bool = False, act_order: bool = False,
) -> Layer:  # fmt: skip
    group = k if group == -1 else group
    groups, most = -(-k // group), (1 << bits) - 1
    codes = draw.integers(0, most + 1, (k, n))
    middle = np.full((groups, n), (most + 1) // 2)
    zeros = middle if symmetric else draw.integers(0, most + 1, (groups, n))
    scales = (draw.random((groups, n)) * 0.02).astype(np.float16)
    g_idx = np.arange(k) // group
    if act_order:
        g_idx = draw.permutation(g_idx)
    stored = zeros if v2 else (zeros - 1) & most
    columns = [stream([int(c) for c in codes[:, j]], bits) for j in range(n)]
    weight = np.empty((n, k), np.float32)
    for i in range(k):
        g = g_idx[i]
        weight[:, i] = scales[g].astype(np.float32) * (codes[i] - zeros[g]).astype(np.float32)
    tensors = {
        "qweight": int32(columns).t().contiguous(),
        "qzeros": int32([stream([int(z) for z in row], bits) for row in stored]),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(g_idx.astype(np.int32)),
    }
    return Layer(tensors, weight)


def awq(draw: np.random.Generator, n: int, k: int, *, group: int = 32) -> Layer:
    group = k if group == -1 else group
    groups = k // group
    codes, zeros = draw.integers(0, 16, (k, n)), draw.integers(0, 16, (groups, n))
    scales = (draw.random((groups, n)) * 0.02).astype(np.float16)

    def pack(values: Array) -> Tensor:
        rows = []
        for row in values:
            eights = [[int(row[i + AWQ_ORDER[j]]) for j in range(8)] for i in range(0, n, 8)]
            rows.append([stream(eight, 4)[0] for eight in eights])
        return int32(rows)

    weight = np.empty((n, k), np.float32)
    for i in range(k):
        g = i // group
        weight[:, i] = (codes[i] - zeros[g]).astype(np.float32) * scales[g].astype(np.float32)
    tensors = {"qweight": pack(codes), "qzeros": pack(zeros), "scales": torch.from_numpy(scales)}
    return Layer(tensors, weight)


def fp8(
    draw: np.random.Generator, n: int, k: int, *, block: tuple[int, int] | None = None,
    per_row: bool = False, dtype: torch.dtype = torch.float8_e4m3fn, inverse: bool = False,
) -> Layer:  # fmt: skip
    codes = torch.from_numpy(draw.standard_normal((n, k)) * 100).to(dtype)
    values = codes.float().numpy()
    if block:
        shape: tuple[int, ...] = (-(-n // block[0]), -(-k // block[1]))
    else:
        shape = (n, 1) if per_row else ()
    scale = np.asarray(draw.random(shape) * 0.001, np.float32)
    weight = np.empty((n, k), np.float32)
    for i in range(n):
        for j in range(k):
            at = (i // block[0], j // block[1]) if block else (i, 0) if per_row else ()
            weight[i, j] = values[i, j] * scale[at]
    name = "weight_scale_inv" if block or inverse else "weight_scale"
    return Layer({"weight": codes, name: torch.from_numpy(scale)}, weight)


def bnb4(draw: np.random.Generator, n: int, k: int, *, nested: bool = True) -> Layer:
    codes = draw.integers(0, 16, n * k)
    blocks = -(-n * k // 64)
    state: dict[str, Any] = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k],
    }  # fmt: skip
    packed = [int(codes[i]) << 4 | int(codes[i + 1]) for i in range(0, n * k, 2)]
    tensors = {
        "weight": torch.tensor(packed, dtype=torch.uint8).view(-1, 1),
        "weight.quant_map": torch.from_numpy(NF4.copy()),
    }
    if nested:
        small = draw.integers(0, 256, blocks).astype(np.uint8)
        book = np.sort(draw.standard_normal(256)).astype(np.float32)
        size, offset = 256, 0.03125
        scale = draw.random(-(-blocks // size)).astype(np.float32)
        absmax = book[small] * scale[np.arange(blocks) // size] + np.float32(offset)
        state |= {"nested_blocksize": size, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {
            "weight.absmax": torch.from_numpy(small),
            "weight.nested_absmax": torch.from_numpy(scale),
            "weight.nested_quant_map": torch.from_numpy(book),
        }
    else:
        absmax = draw.random(blocks).astype(np.float32)
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    weight = NF4[codes] * absmax[np.arange(n * k) // 64]
    return Layer(tensors, weight.reshape(n, k).astype(np.float32))


def bnb8(draw: np.random.Generator, n: int, k: int) -> Layer:
    codes = draw.integers(-127, 128, (n, k)).astype(np.int8)
    largest = draw.random(n).astype(np.float32)
    weight = codes.astype(np.float32) * (largest * np.float32(1 / 127))[:, None]
    tensors = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Layer(tensors, weight)


def nvfp4_modelopt(draw: np.random.Generator, n: int, k: int) -> Layer:
    codes = draw.integers(0, 16, (n, k))
    scale = torch.from_numpy(draw.random((n, k // 16)) * 100).to(torch.float8_e4m3fn)
    whole = np.float32(0.0007)
    by_column = np.repeat(scale.float().numpy() * whole, 16, axis=1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    tensors = {
        "weight": torch.from_numpy(packed.astype(np.uint8)),
        "weight_scale": scale,
        "weight_scale_2": torch.tensor(whole),
    }
    return Layer(tensors, E2M1[codes] * by_column)


def mxfp4_quark(draw: np.random.Generator, n: int, k: int) -> Layer:
    codes, power = draw.integers(0, 16, (n, k)), draw.integers(120, 134, (n, k // 32))
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    tensors = {
        "weight": torch.from_numpy(packed.astype(np.uint8)),
        "weight_scale": torch.from_numpy(power.astype(np.uint8)),
    }
    scale = np.exp2(power - 127.0).astype(np.float32)
    return Layer(tensors, E2M1[codes] * np.repeat(scale, 32, axis=1))


Packer = Callable[[np.random.Generator, int, int], Layer]
