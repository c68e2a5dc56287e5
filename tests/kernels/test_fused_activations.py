"""Native activations against a float64 oracle, on every instruction set this machine can run.

All errors are of float32 arithmetic, in units of U = 2^-24, before one rounding to the dtype. The
functions of csrc/cpu/simd_math.h are bounded by their own derivation: exp 2 units (polynomial,
its last sum, the reduced argument), tanh 5 (exp less 1, a sum and a quotient),
x / (1 + exp(-t)) 4 (the sum and the quotient on top), the normal tail
10 (exp, ten steps of a polynomial whose first coefficient dominates, the quotient). Of bfloat16,
whose own rounding is 2^16 units, x / (1 + exp(-t)) has 2^7.5.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from quire.core.model_config import Activation
from quire.ops.torch_ops import reference
from tests.kernels.fused_common import (
    COLS,
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    new_kernels,
    pick,
    pools,
)
from tests.native import FusedKernels

pytestmark = pytest.mark.matrix

# exp(-t) overflows where t < -88.7, and the result is then 0 instead of less than this times x.
UNDERFLOW = 2.0**-127

SIGMOID = {torch.float32: 4.0, torch.float16: 4.0, torch.bfloat16: 2.0**7.5}
"""Units of x / (1 + exp(-t))."""

GATED: list[Activation] = ["silu_mul", "gelu_tanh_mul", "gelu_mul", "swigluoai_mul", "relu2_mul"]
CAP = 30.0
ACTIVATIONS: list[Activation] = [*GATED, "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu"]


def check_silu_mul(kernels: FusedKernels, gate_up: Tensor) -> None:
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate / (1 + torch.exp(-gate)) * up
    # The logistic function and one product.
    error = (SIGMOID[gate_up.dtype] + 1) * U * exact.abs() + UNDERFLOW * (gate * up).abs()
    assert_close(kernels.activation(gate_up, "silu_mul"), exact, error)


def check_gelu(kernels: FusedKernels, x: Tensor) -> None:
    wide = x.double()
    tail = wide.abs() * 0.5 * torch.special.erfc(wide.abs() / 2**0.5)
    exact = wide.clamp(min=0) - tail
    # The tail, its product, and a difference; where the tail is subnormal, its absolute error.
    error = 11 * U * tail + U * exact.abs() + 16 * 2.0**-149
    assert_close(kernels.activation(x, "gelu"), exact, error)


def check_gelu_tanh(kernels: FusedKernels, x: Tensor) -> None:
    wide = x.double()
    twice = 2 * (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    exact = wide / (1 + torch.exp(-twice))
    # A relative error e of the argument t of exp is a relative error e · |t| of the result. The
    # argument is 3 products, a sum and two rounded constants: 6 units. Beyond |t| = 89 the result
    # is 0, or x.
    units = SIGMOID[x.dtype] + 6 * twice.abs().clamp(max=90)
    error = units * U * exact.abs() + UNDERFLOW * wide.abs()
    assert_close(kernels.activation(x, "gelu_tanh"), exact, error)


def check_gelu_tanh_mul(kernels: FusedKernels, gate_up: Tensor) -> None:
    gate, up = gate_up.double().chunk(2, dim=-1)
    twice = 2 * (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    exact = gate / (1 + torch.exp(-twice)) * up
    # As of gelu_tanh, and one product.
    units = SIGMOID[gate_up.dtype] + 1 + 6 * twice.abs().clamp(max=90)
    error = units * U * exact.abs() + UNDERFLOW * (gate * up).abs()
    assert_close(kernels.activation(gate_up, "gelu_tanh_mul"), exact, error)


def check_gelu_mul(kernels: FusedKernels, gate_up: Tensor) -> None:
    gate, up = gate_up.chunk(2, dim=-1)
    exact = torch.nn.functional.gelu(gate.double()) * up.double()
    # As of gelu, which is held to its own error, and one product.
    gates = kernels.activation(gate.float().contiguous(), "gelu").double() * up.double()
    assert_close(
        kernels.activation(gate_up, "gelu_mul"), exact, U * exact.abs() + (gates - exact).abs()
    )


def check_swigluoai_mul(kernels: FusedKernels, gate_up: Tensor) -> None:
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0) + 1
    exact = gate / (1 + torch.exp(-1.702 * gate)) * up
    # The logistic function, whose argument is a product with a rounded constant; a sum, a product.
    # What up is multiplied by may be subnormal, and off by half the least of them.
    units = SIGMOID[gate_up.dtype] + 2 + 2 * (1.702 * gate).abs().clamp(max=90)
    error = units * U * exact.abs() + 2.0**-150 * up.abs()
    error += UNDERFLOW * (gate * up).abs()
    assert_close(kernels.activation(gate_up, "swigluoai_mul"), exact, error)


def check_quick_gelu(kernels: FusedKernels, x: Tensor) -> None:
    wide = x.double()
    exact = wide / (1 + torch.exp(-1.702 * wide))
    # The logistic function, whose argument is a product with a rounded constant, and a product.
    units = SIGMOID[x.dtype] + 1 + 2 * (1.702 * wide).abs().clamp(max=90)
    error = units * U * exact.abs() + UNDERFLOW * wide.abs()
    assert_close(kernels.activation(x, "quick_gelu"), exact, error)


def check_relu2(kernels: FusedKernels, x: Tensor) -> None:
    exact = x.double().clamp(min=0).square()
    assert_close(kernels.activation(x, "relu2"), exact, U * exact + 2.0**-149)


def check_relu2_mul(kernels: FusedKernels, gate_up: Tensor) -> None:
    gate, up = gate_up.double().chunk(2, dim=-1)
    square = gate.clamp(min=0).square()
    # A square, which may be subnormal, and a product.
    error = 2 * U * (square * up).abs() + 2.0**-149 * up.abs() + 2.0**-149
    assert_close(kernels.activation(gate_up, "relu2_mul"), square * up, error)


def check_softcap(kernels: FusedKernels, x: Tensor) -> None:
    exact = CAP * torch.tanh(x.double() / CAP)
    # tanh, the quotient before it, whose error it does not raise, and the product behind it; of
    # subnormals the quotient is off by half the least of them.
    error = 7 * U * exact.abs() + CAP * 2.0**-149
    assert_close(kernels.softcap(x, CAP), exact, error)


def check_xielu(kernels: FusedKernels, x: Tensor) -> None:
    positive, negative, linear = 0.7, 1.3, 0.5
    x = x.float().clamp(-1e18, 1e18).to(x.dtype)  # further out squares overflow
    wide = x.double()
    square, below = positive * wide.clamp(min=0).square(), wide.clamp(max=0)
    power = torch.expm1(below)
    exact = linear * wide + square + negative * (power - below)
    # Each sum and product rounds once, and exp less 1 is off by 3 units.
    error = (linear * wide).abs() + 4 * square + negative * (6 * power.abs() + 3 * below.abs())
    assert_close(kernels.xielu(x, positive, negative, linear), exact, U * error + 2.0**-149)


GATED_CHECKS: list[Callable[[FusedKernels, Tensor], None]] = [
    check_silu_mul,
    check_gelu_tanh_mul,
    check_gelu_mul,
    check_swigluoai_mul,
    check_relu2_mul,
]
CHECKS = [
    *GATED_CHECKS,
    check_gelu,
    check_gelu_tanh,
    check_relu2,
    check_quick_gelu,
    check_softcap,
    check_xielu,
]


@each_isa
@each_dtype
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_random_rows(
    isa: str, dtype: torch.dtype, check: Callable[[FusedKernels, Tensor], None]
) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in [*COLS, pick(generator, 1, 4099)]:
        check(kernels, draw(generator, dtype, pick(generator, 1, 20), 2 * cols, scale=3.0))


@each_isa
@each_dtype
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_every_magnitude(
    isa: str, dtype: torch.dtype, check: Callable[[FusedKernels, Tensor], None]
) -> None:
    """All finite values of the 16-bit formats; 2^18 random bit patterns of float32."""
    kernels, generator = new_kernels(isa), new_generator()
    if dtype == torch.float32:
        bits = torch.randint(-(2**31), 2**31, (2**18,), generator=generator)
        x = bits.to(torch.int32).view(dtype)
    else:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    if check in GATED_CHECKS:
        x = torch.cat([x, torch.ones_like(x)])
    check(kernels, x)


@each_isa
@each_dtype
@pytest.mark.parametrize("check", CHECKS[2:], ids=lambda check: check.__name__[6:])
def test_the_largest_numbers(
    isa: str, dtype: torch.dtype, check: Callable[[FusedKernels, Tensor], None]
) -> None:
    """Where the error of the oracle's bound reaches beyond the format; a random run found it."""
    shares = 1 - torch.logspace(-8, -3, 200, dtype=torch.float64)
    x = (torch.finfo(dtype).max * shares).to(dtype)
    check(new_kernels(isa), torch.cat([x, -x]))


@each_isa
@each_dtype
def test_relu_add_and_scale_are_torchs(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in COLS:
        x, y = draw(generator, dtype, 3, cols), draw(generator, dtype, 3, cols)
        x[0, 0], x[1, -1], x[2, 0] = float("nan"), float("inf"), -float("inf")
        assert_same_bits(kernels.add(x, y), x + y)
        assert_same_bits(kernels.scale(x, 0.3), reference.scale(x, 0.3))
        # Equal, for the sign of a zero is nobody's business.
        assert torch.equal(kernels.activation(x, "relu").nan_to_num(7), torch.relu(x).nan_to_num(7))


@each_isa
@each_dtype
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_element_does_not_depend_on_its_place(
    isa: str, dtype: torch.dtype, name: Activation
) -> None:
    """A vector's body and a row's end compute alike: any cut of a row gives the same bits."""
    activation, generator = partial(new_kernels(isa).activation, kind=name), new_generator()
    gate, up = draw(generator, dtype, 2, 203, scale=4.0)
    whole = activation(torch.cat([gate, up]) if name in GATED else gate)
    for _ in range(60):
        start = pick(generator, 0, 202)
        end = pick(generator, start + 1, 203)
        part = gate[start:end]
        if name in GATED:
            part = torch.cat([part, up[start:end]])
        assert_same_bits(activation(part), whole[start:end])


@each_dtype
@pytest.mark.parametrize("name", [*ACTIVATIONS, "add"])
def test_threads_and_rows_do_not_matter(dtype: torch.dtype, name: Activation) -> None:
    generator = new_generator()
    x = draw(generator, dtype, 401, 514)
    one, two, three = (
        kernels.add if name == "add" else partial(kernels.activation, kind=name)
        for kernels in pools()
    )

    def arguments(rows: Tensor) -> list[Tensor]:
        return [rows, rows] if name == "add" else [rows]

    whole = one(*arguments(x))
    assert_same_bits(two(*arguments(x)), whole)
    assert_same_bits(three(*arguments(x)), whole)
    for row in (0, 200, 400):
        assert_same_bits(two(*arguments(x[row])), whole[row])


@each_isa
@each_dtype
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rows_need_not_be_contiguous(isa: str, dtype: torch.dtype, name: Activation) -> None:
    activation = partial(new_kernels(isa).activation, kind=name)
    wide = draw(new_generator(), dtype, 5, 4, 192)
    for x in (wide[..., 64:128], wide[:, 1, :64], wide[..., ::3], wide[::2], wide[:0]):
        assert_same_bits(activation(x), activation(x.contiguous()))


@each_isa
@each_dtype
def test_not_a_number_and_infinity(isa: str, dtype: torch.dtype) -> None:
    kernels = new_kernels(isa)
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.0], dtype=dtype)
    pairs = torch.stack([x, torch.ones_like(x)], 1)
    gated = [kernels.activation(pairs, name).flatten() for name in GATED]
    clamped = gated.pop(GATED.index("swigluoai_mul"))
    assert clamped[0].isnan()
    assert clamped[1:4:2].tolist() == pytest.approx([14.0, 0.0], rel=1e-5)
    for y in (
        *gated,
        kernels.activation(x, "gelu"),
        kernels.activation(x, "gelu_tanh"),
        kernels.activation(x, "relu"),
        kernels.activation(x, "relu2"),
    ):
        assert bool(y[0].isnan())
        assert float(y[1]) == float("inf")
        assert float(y[3]) == 0.0
        assert 0.7 < float(y[4]) <= 1.0
    assert float(kernels.activation(x, "gelu")[2]) == 0.0
    capped = kernels.softcap(x, 2.0)
    assert bool(capped[0].isnan())
    assert capped[1:4].tolist() == [2.0, -2.0, 0.0]


def test_what_does_not_fit_is_refused() -> None:
    kernels, x = new_kernels(), torch.ones(2, 7)
    for bad in (x.double(), torch.tensor(1.0), torch.ones(2, 0)):
        with pytest.raises(ValueError, match="x is"):
            kernels.activation(bad, "gelu")
    for name in GATED:
        with pytest.raises(ValueError, match="even last dimension"):
            kernels.activation(x, name)
    for bad in (x.half(), torch.ones(2, 8)):
        with pytest.raises(ValueError, match="y is"):
            kernels.add(x, bad)
