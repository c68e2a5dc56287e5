"""Weights as checkpoints hold them: which form they are packed in, and that it is the same weight.

The oracle is `QuantizedWeight.dequantize`, of weights drawn at random afresh at every run;
QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quire.ops.interface import Ops
from tests.native import PackedLinear, QuantizedWeight, load_ops

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
INTEGERS = torch.tensor(  # the codebook of IQ4_NL
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
).float()
NORMAL = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.04, 0.96, 16))
NORMAL = NORMAL / NORMAL.abs().max()

Draw = Callable[[int, int], QuantizedWeight]


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load_ops("cpu", num_threads=2)


class Source:
    """Weights of the forms that files have; scales and offsets are from float16."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def draw(self, form: str, n: int, k: int) -> QuantizedWeight:
        bits, group, dtype = FORMS[form][:3]
        group = group or k
        groups = (n, -(-k // group))
        low = -(1 << (bits - 1)) if dtype == torch.int8 else 0
        codes = torch.randint(low, low + (1 << bits), (n, k), generator=self.generator)
        book = {"mxfp4": E2M1, "iq4_nl": INTEGERS, "nf4": NORMAL}.get(form)
        second = FORMS[form][3]
        return QuantizedWeight(
            codes.to(dtype),
            bits,
            self.half(*groups),
            group,
            zero=self.zeros(bits, groups, second) if second.startswith("zero") else None,
            offset=self.half(*groups) if second == "offset" else None,
            codebook=book,
            permutation=torch.randperm(k, generator=self.generator)
            if "act_order" in form
            else None,
            float_activations=form == "int8_w8a16",
        )

    def half(self, *shape: int) -> Tensor:
        return (torch.randn(shape, generator=self.generator) / 50).half().float()

    def zeros(self, bits: int, shape: tuple[int, int], second: str) -> Tensor:
        if second == "zero 128":
            return torch.full(shape, 128.0)
        return torch.randint(1 << bits, shape, generator=self.generator).float()


FORMS: dict[str, tuple[int, int, torch.dtype, str, str]] = {
    "gptq": (4, 128, torch.uint8, "zero", "u4"),
    "gptq act_order": (4, 64, torch.uint8, "zero", "u4"),
    "gptq, a row": (4, 0, torch.uint8, "zero", "u4"),
    "gptq, 8 bits": (8, 32, torch.uint8, "zero", "u8"),
    "gptq, 3 bits": (3, 256, torch.uint8, "zero", "u3"),
    "symmetric": (4, 128, torch.int8, "", "u4"),
    "group 48": (4, 48, torch.uint8, "offset", "u4"),
    "q5_1": (5, 32, torch.uint8, "offset", "u5"),
    "q8_0": (8, 32, torch.int8, "", "u8"),
    "q2_k": (2, 16, torch.uint8, "offset", "u2"),
    "q4_k": (4, 32, torch.uint8, "offset", "u4"),
    "q6_k": (6, 16, torch.int8, "", "u6"),
    "7 bits": (7, 64, torch.uint8, "offset", "u8"),
    "mxfp4": (4, 32, torch.uint8, "", "u4_book"),
    "iq4_nl": (4, 32, torch.uint8, "", "u4_book"),
    "nf4": (4, 64, torch.uint8, "", "u4_book"),
    "int8": (8, 0, torch.int8, "", "s8"),
    "int8_w8a16": (8, 0, torch.int8, "", "s8_a16"),
    "int8 act_order": (8, 0, torch.int8, "", "s8"),
    "int8, biased": (8, 0, torch.uint8, "zero 128", "s8"),
    "int8, asymmetric": (8, 0, torch.uint8, "zero", "u8"),
    "group 24": (4, 24, torch.uint8, "offset", "f32"),
}
"""Bits, group (0: one a row), codes, what a group has beside its scale; and the packed kind."""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_packed(ops: Ops, form: str, generator: torch.Generator) -> None:
    for k in (50, 100, 320):
        weight = Source(generator).draw(form, 45, k)
        packed = ops.pack_linear(weight)
        assert isinstance(packed, PackedLinear)
        assert packed.kind == FORMS[form][4]
        dense = weight.dequantize()
        # Entries of a codebook that is no multiple of a number are off by 1/254 of its largest.
        largest = float(weight.scale.abs().max())
        atol = largest / 254 * 1.001 if form == "nf4" else 0.0
        torch.testing.assert_close(packed.unpack(), dense, rtol=2**-20, atol=atol)
        x = torch.randn(7, k, generator=generator)
        y, exact = ops.linear(x, packed).double(), x.double() @ packed.unpack().double().t()
        step = x.double().abs().amax(1, keepdim=True) / 254  # what int8 costs x
        bound = step * packed.unpack().double().abs().sum(1) * 1.01 + 1e-5
        assert bool(((y - exact).abs() <= bound).all())


@pytest.mark.parametrize("provider", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_have_the_dtype_of_the_model(
    provider: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    table = load_ops(provider)  # type: ignore[arg-type]
    for form in ("q4_k", "int8", "group 24"):
        weight = Source(generator).draw(form, 32, 96)
        packed = table.pack_linear([weight, weight], torch.ones(64, dtype=dtype), dtype=dtype)
        x = torch.randn(5, 96, generator=generator).to(dtype)
        assert table.linear(x, packed).dtype == dtype
        rows = table.embedding(torch.tensor([63, 5]), packed)
        wanted = weight.dequantize()[[31, 5]]
        assert rows.dtype == dtype
        torch.testing.assert_close(rows.float(), wanted, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(
    ("forms", "kind"),
    [
        (("q4_k", "q6_k"), "u6"),
        (("q4_k", "q5_1"), "u5"),
        (("symmetric", "gptq"), "u4"),
        (("mxfp4", "q6_k"), "u8"),
        (("mxfp4", "iq4_nl"), "u8"),
        (("int8", "q4_k"), "u8"),
        (("q8_0", "int8, biased"), "u8"),
        (("q4_k", "group 24"), "f32"),
        (("gptq", "gptq act_order"), "f32"),
    ],
)
def test_rows_of_different_forms_are_one_weight(
    ops: Ops, forms: tuple[str, ...], kind: str, generator: torch.Generator
) -> None:
    parts = [Source(generator).draw(form, 19, 192) for form in forms]
    packed = ops.pack_linear(parts)
    assert packed.kind == kind
    dense = torch.cat([part.dequantize() for part in parts])
    # Offsets that stand for zeros are rounded to 11 bits.
    error = (packed.unpack() - dense).abs().amax(1)
    assert bool((error <= 2**-11 * dense.abs().amax(1) * 1.5).all())
