"""Tensors as torch saves them, read without it; and files that only look like such."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from quire.checkpoint.torch_file import read_tensor
from quire.core.errors import CheckpointError

MOST = 10_000


def saved(tensor: Any) -> bytes:
    out = io.BytesIO()
    torch.save(tensor, out)
    return out.getvalue()


def archive(program: bytes, data: bytes = b"\0" * 64, **options: Any) -> bytes:
    """A file whose pickle is `program`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/data/0", data)
    return out.getvalue()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (7,), (), (0, 5)])
def test_reads_what_torch_writes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    found = read_tensor(saved(tensor), MOST)
    assert found.dtype == np.float32
    assert np.array_equal(found, tensor.float().numpy())


def test_dense_views_are_read() -> None:
    base = torch.arange(60.0).reshape(6, 10)
    for view in (base[2:], base[1], base[:, None], base.as_strided((1, 3), (777, 1), 5)):
        assert np.array_equal(read_tensor(saved(view), MOST), view.numpy())


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(60.0).reshape(6, 10).T,
        torch.arange(60.0).reshape(6, 10)[:, 1:],
        torch.arange(60.0).reshape(6, 10)[::2],
        torch.zeros(1).expand(9000),
        torch.zeros(10).expand(900, 10),
        torch.zeros(10).unfold(0, 5, 1),
        torch.zeros(8).as_strided((2, 2), (5, 2)),
    ],
    ids=["transposed", "columns", "rows", "one number", "one row", "windows", "hole"],
)
def test_views_that_are_not_dense_are_refused(view: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"is a view, and not dense.*contiguous\(\)"):
        read_tensor(saved(view), MOST)
    assert np.array_equal(read_tensor(saved(view.contiguous()), MOST), view.numpy())


def test_a_file_takes_no_more_memory_than_its_bytes() -> None:
    data = saved(torch.zeros(10).expand(2**20, 10))
    out = io.BytesIO(saved(torch.zeros(3, 5)))
    with zipfile.ZipFile(out, "a") as file:
        for index in range(2000):
            file.writestr(f"{index}", b"")
    tracemalloc.start()
    try:
        for small in (data, out.getvalue()):
            with pytest.raises(CheckpointError):
                read_tensor(small, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        saved(torch.zeros(3, 5))[:-30],
        saved(torch.zeros(3, 5).double()),
        saved(torch.zeros(3, 5, dtype=torch.int64)),
        saved({"a": torch.zeros(1)}),
        saved([torch.zeros(1)]),
        saved(torch.nn.Parameter(torch.zeros(3))),
        saved(torch.zeros(MOST + 1)),
        saved(torch.zeros(1).expand(10**12)),
        archive(b""),
        archive(pickle.dumps(3)),
        archive(pickle.dumps(print)),
        archive(b"c" + b"os\nsystem\n(S'true'\ntR."),
        archive(b"\x80\x02K\x01r\xff\xff\xff\x7f."),
        archive(b"\x80\x02" + b"(" * 3000),
        archive(pickle.dumps(b"x" * 5000)),
        archive(b"\x80\x02.", compression=zipfile.ZIP_DEFLATED),
    ],
)
def test_what_is_no_tensor_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="no tensor as torch"):
        read_tensor(data, MOST)


def test_a_shape_beyond_its_storage_is_refused() -> None:
    data = saved(torch.zeros(3, 5))
    source = zipfile.ZipFile(io.BytesIO(data))
    root = source.namelist()[0].partition("/")[0]
    program = source.read(f"{root}/data.pkl").replace(b"K\x03K\x05", b"K\x04K\x05")
    assert program != source.read(f"{root}/data.pkl")
    with pytest.raises(CheckpointError, match="storage is too small"):
        read_tensor(archive(program, b"\0" * 60), MOST)


def test_no_byte_of_a_file_makes_it_raise_anything_else() -> None:
    data = bytearray(saved(torch.ones(2, 2)))
    random = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for at in random.integers(0, len(data), 3):
            broken[at] = random.integers(256)
        with suppress(CheckpointError):
            read_tensor(bytes(broken), MOST)
