"""Packed weights: made of parts, stored as the kind says, looked up as an embedding.

Inputs are random afresh at every run; QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from __future__ import annotations

import typing

import pytest
import torch

from quire.ops.native.gemm import WeightKind
from quire.ops.native.kernels import native_kernels
from tests.kernels.fused_common import assert_same_bits, draw, each_dtype, new_generator
from tests.native import PackedLinear, pool_of

pytestmark = pytest.mark.matrix

KINDS: tuple[WeightKind, ...] = typing.get_args(WeightKind)
SHAPES = [(1, 1), (3, 5), (31, 64), (33, 31), (64, 96), (97, 65), (40, 300), (257, 1023)]

each_kind = pytest.mark.parametrize("kind", KINDS)


def pack(weight: torch.Tensor | list[torch.Tensor], kind: WeightKind) -> PackedLinear:
    return PackedLinear(native_kernels(), pool_of(2), weight, kind=kind)


@each_kind
@each_dtype
def test_parts_are_one_weight(kind: WeightKind, dtype: torch.dtype) -> None:
    generator = new_generator()
    for n, k in SHAPES:
        weight = draw(generator, dtype, n, k)
        cuts = torch.randint(0, n + 1, (2,), generator=generator).sort().values.tolist()
        parts = [part for part in weight.tensor_split(cuts) if part.numel()]
        wide = draw(generator, dtype, n, k + 7)
        wide[:, :k] = weight
        whole = pack(weight, kind)
        for same in (pack(parts, kind), pack(wide[:, :k], kind), pack([weight], kind)):
            assert same.shape == (n, k)
            assert same.nbytes == whole.nbytes
            assert_same_bits(same.unpack(), whole.unpack())


@each_dtype
def test_floats_are_stored_rounded_once(dtype: torch.dtype) -> None:
    generator = new_generator()
    for n, k in SHAPES:
        weight = draw(generator, dtype, n, k)
        assert_same_bits(pack(weight, "f32").unpack(), weight.float())
        assert_same_bits(pack(weight, "bf16").unpack(), weight.bfloat16().float())


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lookup(kind: WeightKind, dtype: torch.dtype) -> None:
    generator = new_generator()
    for n, k in SHAPES:
        packed = pack(draw(generator, dtype, n, k), kind)
        for rows in (0, 1, 7, 700):
            ids = torch.randint(0, n, (rows,), generator=generator)
            assert_same_bits(packed.lookup(ids), packed.unpack()[ids].to(dtype))


def test_what_cannot_be_packed_or_looked_up_is_refused() -> None:
    one = torch.ones(4, 8)
    for bad in ([one, one.half()], [one, torch.ones(4, 7)], [one, one.int()]):
        with pytest.raises(ValueError, match="weight"):
            pack(bad, "f32")
    packed = pack([one, one], "f32")
    for row in (-1, 8):
        with pytest.raises(IndexError, match=f"token id {row} of row 1"):
            packed.lookup(torch.tensor([7, row]))
    with pytest.raises(ValueError, match="ids is"):
        packed.lookup(torch.tensor([7], dtype=torch.int32))
