from __future__ import annotations

import sys

import pytest
import torch

from quire.core.errors import ConfigError
from quire.ops.interface import OP_NAMES, Ops
from quire.ops.torch_ops import reference
from tests.native import load_ops


def test_reference_is_all_reference() -> None:
    ops = load_ops("reference")
    assert ops.provider == "reference"
    assert ops.sources == dict.fromkeys(OP_NAMES, "reference")
    assert ops.rms_norm is reference.rms_norm


def test_every_op_is_callable_and_has_a_source() -> None:
    ops = load_ops("auto")
    assert set(ops.sources) == set(OP_NAMES)
    assert all(callable(getattr(ops, name)) for name in OP_NAMES)


@pytest.fixture
def native() -> Ops:
    return load_ops("cpu")


def test_cpu_is_native_but_for_what_runs_once_a_step(native: Ops) -> None:
    assert native.provider == "cpu"
    plain = {op for op, source in native.sources.items() if not source.startswith("native ")}
    assert plain == set()
    x, weight = torch.randn(3, 4, 24), torch.randn(24)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-6),
                               reference.rms_norm(x, weight, 1e-6))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linear_takes_every_dtype_of_a_model(native: Ops, dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 24).to(dtype), torch.randn(7, 24).to(dtype)
    y = native.linear(x, native.pack_linear(weight))
    assert y.dtype == dtype
    torch.testing.assert_close(y, x @ weight.T, rtol=2e-2, atol=5e-2)
    assert native.logits(x, native.pack_linear(weight)).dtype == torch.float32


def test_int8_weights(native: Ops) -> None:
    x, weight = torch.randn(3, 64), torch.randn(7, 64)
    int8 = load_ops("cpu", quantization="int8")
    got = int8.linear(x, int8.pack_linear(weight))
    exact = native.linear(x, native.pack_linear(weight))
    assert not torch.equal(got, exact)
    # Each element is off by half a step at most, and a step is 1/127 of its row's largest.
    dx = x.abs().amax(1, keepdim=True) / 254
    dw = weight.abs().amax(1, keepdim=True) / 254
    bound = x.abs().sum(1, keepdim=True) * dw.T + dx * weight.abs().sum(1) + 64 * dx * dw.T
    assert bool(((got - exact).abs() <= bound * (1 + 1e-5)).all())
    with pytest.raises(ConfigError, match="no quantized products"):
        load_ops("reference", quantization="int8")


def test_unknown_isa_is_refused(native: Ops) -> None:
    with pytest.raises(ConfigError, match="mmx"):
        load_ops("cpu", isa="mmx")


def test_forced_isa_is_taken(native: Ops) -> None:
    assert load_ops("cpu", isa="portable").sources["rms_norm"] == "native portable"


def test_without_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quire.ops.cpu", None)
    for provider in ("auto", "cpu"):
        with pytest.raises(ConfigError, match=r"native .* cannot be .*--ops reference"):
            load_ops(provider)
    assert load_ops("reference").provider == "reference"


def test_weights_of_other_dtypes_are_refused(native: Ops) -> None:
    with pytest.raises(ValueError, match="weights are float64; wanted float32, bfloat16"):
        native.pack_linear(torch.ones(2, 3, dtype=torch.float64))


def test_a_weight_is_for_its_own_provider(native: Ops) -> None:
    packed = load_ops("reference").pack_linear(torch.ones(2, 3))
    with pytest.raises(TypeError, match="no product with a DenseWeight"):
        native.linear(torch.ones(1, 3), packed)


def test_ops_can_be_replaced(native: Ops) -> None:
    changed = native.using(scale=lambda x, factor: x)
    x = torch.ones(2, 2)
    assert (changed.scale(x, 3.0) is x, changed.sources) == (True, native.sources)
    assert native.scale(x, 3.0).tolist() == [[3.0, 3.0]] * 2
    calls: list[str] = []
    wrapped = native.wrapped(lambda name, op: lambda *args: calls.append(name) or op(*args))
    wrapped.add(wrapped.scale(x, 2.0), x)
    assert calls == ["scale", "add"]
