"""Codes of 4 bits, two at a time: PTX that the interpreter cannot run, run here by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import triton.language as tl

from quire.core.quantized import E2M1
from quire.ops.triton import launch, linear
from quire.ops.triton.kernels.weights import pair_asm
from quire.ops.triton.weights import CodedWeight, coded
from tests.triton.test_products import quantized

TYPES: dict[Any, Any] = {tl.bfloat16: ml_dtypes.bfloat16, tl.float16: np.float16}
Words = np.ndarray[Any, np.dtype[np.uint32]]


def computed(asm: str, inputs: list[Words], dtype: Any) -> list[Words]:
    """Return $0 and $1 of PTX, for inputs $2, $3 …"""
    known: dict[str, Words] = {f"${2 + i}": words for i, words in enumerate(inputs)}

    def of(operand: str) -> Words:
        found = known.get(operand)
        return np.array([int(operand, 0)], np.uint32) if found is None else found

    def floats(operand: str) -> Any:
        return of(operand)[:, None].view(dtype).astype(np.float64)

    for line in asm.strip("{} ").split(";"):
        name, _, rest = line.strip().partition(" ")
        target, *operands = [each.strip() for each in rest.split(",")]
        if name == "mov.b32":
            known[target] = of(operands[0])
        elif name == "and.b32":
            known[target] = of(operands[0]) & of(operands[1])
        elif name == "shr.b32":
            known[target] = of(operands[0]) >> of(operands[1])
        elif name == "shl.b32":
            known[target] = of(operands[0]) << of(operands[1])
        elif name == "or.b32":
            known[target] = of(operands[0]) | of(operands[1])
        elif name == "prmt.b32":
            both = of(operands[0]).astype(np.uint64) | of(operands[1]).astype(np.uint64) << 32
            selector = int(operands[2], 0)
            parts = [both >> 8 * (selector >> 4 * i & 15) & 255 for i in range(4)]
            known[target] = sum(part << 8 * i for i, part in enumerate(parts)).astype(np.uint32)
        elif name.startswith("fma.rn."):
            a, b, c = map(floats, operands)
            exact = a * b + c
            rounded = np.broadcast_to(exact, (len(known["$2"]), 2)).astype(dtype)
            known[target] = np.ascontiguousarray(rounded).view(np.uint32)[:, 0]
        else:
            assert name in ("", ".reg"), name
    return [known["$0"], known["$1"]]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("scales", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("compute", TYPES)
@pytest.mark.parametrize("form", ["zeros", "e2m1"])
def test_pairs_have_the_bits_of_floats(form: str, compute: Any, scales: Any, part: int) -> None:
    """All codes and zero points, with scales of all sizes."""
    dtype = TYPES[compute]
    if (scales, dtype) == (ml_dtypes.bfloat16, np.float16):
        return  # such weights are not paired
    rng, bias = np.random.default_rng(0), 128 if dtype == ml_dtypes.bfloat16 else 1024
    codes, zeros = (g.reshape(-1, 1) for g in np.mgrid[:16, :17])
    codes = np.concatenate((codes, rng.permuted(np.arange(16 * 17 * 3).reshape(-1, 3) % 16)), 1)
    sizes = rng.standard_normal(len(codes)) * 2.0 ** rng.integers(-18, 4, len(codes))
    scale = sizes.astype(scales).astype(np.float32)[:, None]
    near = scale.astype(dtype)
    lacks = (scale - near.astype(np.float32)).astype(dtype)
    split = scales != dtype
    other = rng.integers(0, 16, codes.shape)
    low, high = (codes, other) if part == 0 else (other, codes)
    words = (low | high << 4).astype(np.uint8).view(np.uint32)[:, 0]

    def pair(numbers: Any) -> Any:
        return np.repeat(numbers.astype(dtype), 2, axis=1).view(np.uint32)[:, 0]

    given = [near, *[lacks] * split, *[-bias - zeros] * (form == "zeros")]
    asm: str = pair_asm(compute, part, split, form == "e2m1")
    inputs = [words, *(pair(each) for each in given for _ in range(2))]
    found = np.stack([r[:, None].view(dtype) for r in computed(asm, inputs, dtype)], 1)
    numbers = codes.astype(np.float32) - zeros if form == "zeros" else np.float32(E2M1)[codes]
    expected = (numbers * scale).astype(dtype)
    assert np.array_equal(found.reshape(len(codes), 4), expected)


def test_weights_are_paired_if_no_bit_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "card", lambda device: launch.Card(pairs=True))

    def form(name: str, scales: Any, dtype: torch.dtype) -> str:
        weight = quantized(name, 20, 128, seed=1)
        weight.scale[:] = weight.scale.astype(scales)
        packed = coded([weight], None, "none", 1, dtype)
        assert isinstance(packed, CodedWeight)
        return linear._form(packed).of(torch.empty(1, 128, dtype=dtype))

    for dtype, scales, paired in (
        (torch.bfloat16, np.float16, True), (torch.bfloat16, ml_dtypes.bfloat16, True),
        (torch.float16, np.float16, True), (torch.bfloat16, np.float32, False),
        (torch.float32, np.float16, False),
    ):  # fmt: skip
        for name in ("zeros", "e2m1"):
            assert form(name, scales, dtype) == "paired " * paired + name
    assert form("nvfp4", np.float32, torch.bfloat16) == "paired e2m1"
    assert form("fractions", np.float16, torch.float16) == "zeros"
    assert form("offsets", np.float16, torch.float16) == "offsets"
    monkeypatch.setattr(launch, "card", lambda device: launch.Card())
    assert form("zeros", np.float16, torch.float16) == "zeros"
