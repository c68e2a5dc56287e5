"""Products on a real GPU: near float64, and the same bits in every tile; skipped without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from triton import TritonError

from quire.core.quantized import QuantizedWeight
from quire.ops.providers import open_device
from quire.ops.torch_ops import moe as plain
from quire.ops.torch_ops.arrays import array, tensor
from quire.ops.triton import experts, linear
from quire.ops.triton import rows as rows_ops
from quire.ops.triton.provider import TritonOps
from quire.ops.triton.rows import coded_norms
from quire.ops.triton.tuning import TileTuning
from quire.ops.triton.weights import CODED_ROWS
from tests.kernels.test_route import SPECS
from tests.triton.test_products import close, quantized

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")

FORMS = ["dense", "int8", "codes", "float8", "float8_a16", "zeros", "paired", "offsets",
         "book", "e2m1", "paired_e2m1", "nvfp4", "ordered"]  # fmt: skip
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(scope="module")
def ops() -> TritonOps:
    return TritonOps(open_device("cuda"))


def tiles(dtype: torch.dtype) -> Iterator[linear.Tile]:
    yield linear.Tile(16, 64, 32, 4, 2, 3)
    yield linear.Tile(64, 64, 32, 4, 3, 0)
    if dtype != torch.float32:
        yield linear.Tile(64, 128, 128, 8, 3, 1)
        yield linear.Tile(128, 128, 64, 8, 4, 0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("form", FORMS)
def test_every_tile_gives_the_same_bits(
    ops: TritonOps, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few and many rows, segments in one program or in several, dequantized before or not."""
    n, k, count = 130, 1184, 300
    x = torch.randn(count, k, device="cuda").to(dtype)
    if form == "dense":
        numbers = torch.randn(n, k).to(dtype)
        packed = ops.pack_linear(array(numbers))
    else:
        weight: QuantizedWeight = quantized(form, n, k, seed=1)
        numbers, packed = tensor(weight.dequantize()), ops.pack_linear(weight)
    whole = ops.linear(x, packed)
    if form not in CODED_ROWS:
        assert close(whole, x, numbers.to(dtype).cuda(), ROUNDING[dtype])
    assert linear.segment(n, k) < k
    for chosen in tiles(dtype):
        monkeypatch.setattr(linear, "tile", lambda rows, compute, chosen=chosen: chosen)
        for first, last, programs in ((0, 1, 1000), (7, 40, 1000), (0, 255, 0), (0, count, 1000)):
            monkeypatch.setattr(linear, "processors", lambda device, n=programs: n)
            found = ops.linear(x[first:last], packed)
            assert torch.equal(found, whole[first:last]), (chosen, first, last, programs)


@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("form", ["dense", "zeros", "int8", "float8"])
def test_sizes_that_are_tuned_give_the_same_bits(
    ops: TritonOps, form: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time; a card may lack the memory for some."""
    n, k = 520, 2304
    x = torch.randn(rows, k, device="cuda").to(torch.bfloat16)
    dense = array(torch.randn(n, k).to(torch.bfloat16))
    packed = ops.pack_linear(dense if form == "dense" else quantized(form, n, k, seed=1))
    expected, own = ops.linear(x, packed), linear.tile
    assert linear.segment(n, k) < k
    values = [
        *(("columns", each) for each in (64, 128, 256)), ("warps", 4), ("warps", 8),
        *(("stages", each) for each in (2, 5)), ("waves", -1), ("waves", 8),
        *([("rows", each) for each in (64, 256)] if rows > 64 else [("early", -1), ("early", 4)]),
    ]  # fmt: skip
    for field, value in values:
        sizes = TileTuning(**{field: value})
        monkeypatch.setattr(linear, "tile", lambda *given, s=sizes: own(*given).tuned(s))
        try:
            found = ops.linear(x, packed)
        except TritonError:
            continue
        assert torch.equal(found, expected), (field, value)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", CODED_ROWS.values())
@pytest.mark.parametrize("norm", coded_norms(torch.int8))
def test_a_norm_quantizes_with_the_bits_of_two_kernels(
    norm: str, kind: torch.dtype, dtype: torch.dtype
) -> None:
    x, more, gain, bias = (torch.randn(5, 2048, device="cuda").to(dtype) for _ in range(4))
    given = (x, *[more] * norm.startswith("add"), gain[0], *[bias[0]] * norm.endswith("layer_norm"))
    found, plain = coded_norms(kind)[norm](*given, 1e-6), getattr(rows_ops, norm)(*given, 1e-6)
    if norm.startswith("add"):
        found, plain = found[0], plain[0]
    assert torch.equal(found, plain)
    pairs = zip(rows_ops.codes_of(found, kind), rows_ops.codes_of(plain, kind), strict=True)
    assert all(torch.equal(own.float(), other.float()) for own, other in pairs)


@pytest.mark.parametrize("form", ["dense", "zeros", "paired", "int8", "float8"])
def test_experts_alone(ops: TritonOps, form: str) -> None:
    count, hidden, width = 8, 256, 128
    sizes = (count * 2 * width, hidden), (count * hidden, width)
    weights = [
        array(torch.randn(n, k).to(torch.bfloat16)) if form == "dense" else quantized(form, n, k, 2)
        for n, k in sizes
    ]
    gate_up = ops.pack_linear(weights[0], epilogue="silu_mul", experts=count)
    down = ops.pack_linear(weights[1], experts=count)
    x = torch.randn(500, hidden, device="cuda").to(torch.bfloat16)
    chosen = torch.rand(500, count, device="cuda").argsort(1)[:, :2]
    shares = torch.rand(500, 2, device="cuda")
    together = ops.moe(x, chosen, shares, gate_up, down)
    for first, last in ((0, 1), (3, 9), (100, 300)):
        some = slice(first, last)
        found = ops.moe(x[some], chosen[some], shares[some], gate_up, down)
        assert torch.equal(found, together[some])


@pytest.mark.parametrize("name", SPECS)
def test_the_choice_of_experts(ops: TritonOps, name: str) -> None:
    count, spec, biased = SPECS[name]
    logits = 3.0 * torch.randn(500, count)
    bias = torch.randn(count) if biased else None
    expected = plain.route(logits, bias, spec)
    found = ops.route(logits.cuda(), None if bias is None else bias.cuda(), spec)
    assert (found[0].cpu() == expected[0]).all(1).float().mean() > 0.99  # near ties may swap
    same = found[0].cpu() == expected[0]
    assert ((found[1].cpu() - expected[1]).abs() <= 2.0**-22 * expected[1])[same].all()
    listed = experts.grouped(found[0], count, 16)
    pairs = listed.row_ids[listed.row_ids >= 0].cpu()
    assert torch.equal(pairs.sort().values, torch.arange(found[0].numel(), dtype=torch.int32))
    own = listed.tile_experts.repeat_interleave(16)[listed.row_ids >= 0]
    assert torch.equal(found[0].flatten()[pairs.cuda().long()], own.long())


def test_an_activation_in_a_product_is_that_of_its_own_kernel(ops: TritonOps) -> None:
    weight = array(torch.randn(260, 192).to(torch.bfloat16))
    x = torch.randn(70, 192, device="cuda").to(torch.bfloat16)
    plain = ops.linear(x, ops.pack_linear(weight))
    for kind in ("silu_mul", "gelu_tanh_mul", "swigluoai_mul", "gelu", "relu2"):
        found = ops.linear(x, ops.pack_linear(weight, epilogue=kind))
        assert torch.equal(found, ops.activation(plain, kind)), kind
