from __future__ import annotations

import sys

import pytest
import torch

from quire.core.errors import ConfigError
from quire.ops import reference
from quire.ops.table import OP_NAMES, OpTable, load_ops


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
def native() -> OpTable:
    pytest.importorskip("quire._native", reason="the native module is not built")
    return load_ops("cpu")


def test_cpu_takes_the_native_norms(native: OpTable) -> None:
    assert native.provider == "cpu"
    assert native.sources["rms_norm"].startswith("native ")
    assert native.sources["gelu"] == "reference"
    x, weight = torch.randn(3, 4, 24), torch.randn(24)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-6),
                               reference.rms_norm(x, weight, 1e-6))  # fmt: skip
    for got, expected in zip(
        native.add_rms_norm(x, x, weight, 1e-6),
        reference.add_rms_norm(x, x, weight, 1e-6),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_cpu_falls_back_for_other_dtypes(native: OpTable) -> None:
    x, weight = torch.randn(3, 24).double(), torch.randn(24).double()
    assert torch.equal(native.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert torch.equal(
        native.add_rms_norm(x, x, weight, 1e-6)[0],
        reference.add_rms_norm(x, x, weight, 1e-6)[0],
    )


def test_unknown_isa_is_refused(native: OpTable) -> None:
    with pytest.raises(ConfigError, match="mmx"):
        load_ops("cpu", isa="mmx")


def test_forced_isa_is_taken(native: OpTable) -> None:
    assert load_ops("cpu", isa="portable").sources["rms_norm"] == "native portable"


def test_without_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quire.ops.native", None)
    monkeypatch.delenv("QUIRE_CPU_ISA", raising=False)
    ops = load_ops("auto")
    assert ops.provider == "reference"
    assert "cannot be imported" in ops.note
    with pytest.raises(ConfigError, match="--ops reference"):
        load_ops("cpu")
    with pytest.raises(ConfigError):
        load_ops("auto", isa="avx2")
