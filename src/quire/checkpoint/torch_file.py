"""Read a tensor written by `torch.save`, without torch and without running a pickle.

The file is a zip archive: `data.pkl` describes the tensor, `data/0` contains its numbers. Only the
pickle instructions that a tensor needs are interpreted, on a stack of plain values; none of them
can call anything. So untrusted files are safe to read.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import dtype_of
from quire.core.errors import CheckpointError

MAX_PICKLE_BYTES = 4096
"""Maximum bytes of `data.pkl`; a tensor's has about 200."""

MAX_MEMBERS = 64
"""Maximum files in an archive. A tensor's has about six; `zipfile` allocates 500 bytes for each."""
_MEMBER = b"PK\x01\x02"
"""The bytes at the beginning of each entry of an archive's directory."""

_STORAGES = {
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
}
_MARK = object()
_PLAIN = {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"}
_CONSTANTS: dict[str, Any] = {
    "NEWTRUE": True, "NEWFALSE": False, "NONE": None, "EMPTY_TUPLE": (), "MARK": _MARK
}  # fmt: skip


class _Name(str):
    """The name of an object that a pickle would import."""


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""


def read_tensor(data: bytes, max_elements: int, *, integers: bool = False) -> NDArray[np.float32]:
    """Return the values of a saved float32, float16 or bfloat16 tensor as float32.

    Args:
        integers: it is an int64 tensor instead, of small numbers.

    Raises:
        CheckpointError: the file is not a saved tensor, has more than `max_elements`, or is a view
            whose numbers are not contiguous.
    """
    try:
        if data.count(_MEMBER) > MAX_MEMBERS:
            raise ValueError(f"its archive has more than {MAX_MEMBERS} files")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            root = next(name for name in members if name.endswith("/data.pkl")).rpartition("/")[0]

            def read(name: str, limit: int = len(data)) -> bytes:
                info = members[f"{root}/{name}"]
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
                    raise ValueError(f"{name} is compressed or too large")
                return archive.read(info)

            if f"{root}/byteorder" in members and read("byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
            tensor = _tensor(read("data.pkl", MAX_PICKLE_BYTES))
            if (tensor.storage.dtype == "int64") != integers:
                raise ValueError(f"it is of {tensor.storage.dtype}")
            if np.prod(tensor.shape, dtype=float) > max_elements:
                raise ValueError(f"it is of shape {list(tensor.shape)}, which is too large")
            return _array(tensor, read(f"data/{tensor.storage.key}"))
    except Exception as error:  # zipfile and pickletools raise many types for damaged bytes
        why = str(error) or type(error).__name__
        raise CheckpointError(
            f"It is no tensor as torch.save writes one: {why}.",
            fix="Send torch.save(tensor.contiguous(), file), of float32, float16 or bfloat16.",
        ) from None


def _tensor(program: bytes) -> _Tensor:
    """Interpret a pickle; raise `ValueError` for any instruction that a tensor does not need."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(program):
        name = opcode.name
        if name in _PLAIN:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "GLOBAL":
            stack.append(_Name(str(argument).replace(" ", ".")))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "TUPLE":
            start = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[start:] = [tuple(stack[start + 1 :])]
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "BINPERSID":
            _, kind, key, *_ = stack.pop()
            if kind not in _STORAGES:
                raise ValueError(f"it is of {kind}")
            stack.append(_Storage(_STORAGES[kind], str(key)))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_reduced(stack.pop(), arguments))
        elif name == "STOP":
            break
        elif name != "PROTO":
            raise ValueError(f"it has the instruction {name}")
    [found] = stack
    if not isinstance(found, _Tensor):
        raise ValueError("it is no tensor")
    return found


def _reduced(function: object, arguments: tuple[Any, ...]) -> _Tensor | None:
    if function == "collections.OrderedDict":
        return None  # an empty dict of hooks
    if not isinstance(function, _Name) or function != "torch._utils._rebuild_tensor_v2":
        raise ValueError(f"it calls {function}")
    storage, offset, shape, strides, *_ = arguments
    numbers = [offset, *shape, *strides]
    if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("it has no shape")
    return _Tensor(storage, offset, shape, strides)


def _array(tensor: _Tensor, data: bytes) -> NDArray[np.float32]:
    """Return the tensor's values. No stride repeats a stored number."""
    dtype = tensor.storage.dtype
    stored = np.frombuffer(data, dtype_of(dtype))
    if tensor.strides != _dense_strides(tensor):
        raise ValueError(f"its strides are {list(tensor.strides)}: it is a view, and not dense")
    size = math.prod(tensor.shape)
    if tensor.offset + size > len(stored):
        raise ValueError("its storage is too small")
    numbers = stored[tensor.offset : tensor.offset + size].reshape(tensor.shape)
    return numbers.astype(np.float32)


def _dense_strides(tensor: _Tensor) -> tuple[int, ...]:
    """Return the strides of a row-major tensor of this shape. For extents of 1, the given strides
    are returned: torch may store any value there."""
    if 0 in tensor.shape:
        return tensor.strides
    strides: list[int] = []
    step = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        strides.append(stride if extent == 1 else step)
        step *= extent
    return tuple(reversed(strides))
