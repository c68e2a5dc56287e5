"""What ops take and return: opaque to every other room."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from quire.core.dtypes import HostArray


class Array(Protocol):
    """An array on the provider's device. Only its provider computes with it.

    `Ops.array` makes one from a numpy array, and `Ops.numpy` reads one. Other rooms may take rows,
    `x[first:last]` or `x[rows]`, and view contiguous results in another shape.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any:
        """Return the provider's dtype."""

    @property
    def itemsize(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Self: ...

    def __iter__(self) -> Iterator[Self]: ...

    @property
    def reshape(self) -> Callable[..., Any]: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    A = TypeVar("A", default=Array)
else:
    A = typing.TypeVar("A")


def address(values: HostArray) -> int:
    """Return where the first element lies."""
    found: int = values.__array_interface__["data"][0]
    return found
