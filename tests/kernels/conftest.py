"""What tests of kernels take: instruction sets, pools of threads, and random numbers."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from quire import _native
from quire.ops.native.kernels import Kernels, native_kernels
from tests.isas import ISAS

if TYPE_CHECKING:
    import torch


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kernels(isa: str) -> Kernels:
    return native_kernels(isa)


@pytest.fixture(scope="session")
def pools() -> list[_native.Pool]:
    return [_native.Pool(1), _native.Pool(2), _native.Pool(3)]


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Draws other shapes and numbers in each case, and the same ones in each run of a case."""
    from tests.kernels.fused_common import new_generator

    return new_generator(zlib.crc32(request.node.name.encode()))
