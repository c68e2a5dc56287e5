"""What packing loses of GGUF's weights: nothing, or what docs/gguf.md says.

The oracle is gguf-py, of weights drawn afresh at every run; QUIRE_TEST_SEED repeats one.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from quire.checkpoint.gguf_blocks import QUANTIZED, quantized_arrays
from quire.checkpoint.gguf_lattices import LATTICES
from quire.checkpoint.gguf_types import TENSOR_TYPES, TYPES
from quire.ops.interface import Ops
from quire.quant.ggml import quantize_rows
from tests.kernels.fused_common import new_generator
from tests.native import PackedLinear, QuantizedWeight, load_ops

N, K = 32, 1024
TERNARY = ("TQ1_0", "TQ2_0")
"""Quire does not write them."""
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", *TERNARY)
"""Their scales are float16, or powers of two. Those of the others are products of two numbers."""


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load_ops("cpu", num_threads=2)


def draw(name: str, generator: torch.Generator) -> tuple[QuantizedWeight, Tensor]:
    """A weight of blocks of very different sizes in type `name`, and its values by gguf-py."""
    sizes = 10 ** (torch.rand(N, K // 256, 1, generator=generator) * 4 - 3)
    dense = torch.randn(N, K // 256, 256, generator=generator) + 0.5
    type_, values = gguf.GGMLQuantizationType[name], (dense * sizes).view(N, K).numpy()
    if name in LATTICES:  # gguf-py cannot write them
        raw = random_lattice(name, sizes.view(-1).numpy(), generator)
    else:
        raw = gguf.quantize(values, type_) if name in TERNARY else quantize_rows(values, name)
    arrays = quantized_arrays(raw.reshape(-1), TENSOR_TYPES[type_.value], N, K)

    def tensor(numbers: object) -> Tensor | None:
        return torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else None

    weight = QuantizedWeight(
        torch.from_numpy(arrays.codes), arrays.bits, torch.from_numpy(arrays.scale), arrays.group,
        tensor(arrays.zero), tensor(arrays.offset), tensor(arrays.codebook),
    )  # fmt: skip
    return weight, torch.from_numpy(gguf.dequantize(raw, type_)).view(N, K)


def random_lattice(name: str, d: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Return one block of random points for each d: uint8 [N, bytes of a row]."""
    width = TYPES[name].block_bytes
    raw = torch.randint(0, 256, (len(d), width), generator=generator, dtype=torch.uint8).numpy()
    halves = d.astype(np.float16)
    if name == "IQ1_M":  # four bits at the top of each of the last four words
        words = raw[:, -8:].view("<u2")
        words[:] = words & 0xFFF | halves.view(np.uint16)[:, None] >> (0, 4, 8, 12) << 12 & 0xF000
    else:
        raw[:, :2] = halves[:, None].view(np.uint8)
    return raw.reshape(N, -1)


def unpacked(ops: Ops, weights: list[QuantizedWeight]) -> Tensor:
    packed = ops.pack_linear(weights)
    assert isinstance(packed, PackedLinear)
    assert packed.kind.startswith("u")
    return packed.unpack()


def rounding_of(weight: QuantizedWeight) -> Tensor:
    """What 11 significant bits of scale and offset lose of each value at most."""
    offset = torch.zeros_like(weight.scale) if weight.offset is None else weight.offset
    second = offset.repeat_interleave(weight.group, dim=1)
    scaled = weight.dequantize() - second
    top = torch.maximum(weight.scale.abs(), offset.abs()).amax(1, keepdim=True)
    # Scales below 2^-29 of a row's largest are float16 subnormals, and codes are below 2^8.
    return 2**-11 * (scaled.abs() + second.abs()) + 2**-40 * 2**8 * top


@pytest.mark.parametrize("name", QUANTIZED)
def test_what_packing_keeps(ops: Ops, name: str) -> None:
    weight, expected = draw(name, new_generator())
    assert torch.equal(weight.dequantize(), expected)
    found = unpacked(ops, [weight])
    if name in EXACT:
        assert torch.equal(found, expected)
    else:
        error = (found - expected).abs()
        assert bool((error <= rounding_of(weight) * (1 + 2**-10)).all())
        # The claim is no excuse: the scales do need more bits than these.
        assert not torch.equal(found, expected)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("other", ["Q4_K", "Q6_K", "Q8_0", "Q4_1"])
def test_a_merged_weight_keeps_its_parts(ops: Ops, name: str, other: str) -> None:
    """q, k and v of one layer may have different types; an exact one stays so."""
    generator = new_generator()
    (first, expected), (second, _) = draw(name, generator), draw(other, generator)
    assert torch.equal(unpacked(ops, [first, second])[:N], expected)
