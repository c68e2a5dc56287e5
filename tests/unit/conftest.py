"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from quire.ops.interface import Ops
from quire.ops.native.kernels import available_isas


@pytest.fixture(params=["reference", *available_isas()])
def ops(request: pytest.FixtureRequest) -> Ops:
    """The operations of every provider and instruction set that this machine has."""
    from tests.native import load_ops

    if request.param == "reference":
        return load_ops("reference")
    return load_ops("cpu", request.param, num_threads=2)
