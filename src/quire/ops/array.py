"""What ops take and return: opaque to every other room."""

from __future__ import annotations

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array on the provider's device, with `shape`, `dtype` and `nbytes`; views of its rows are
`array[first:last]`. Only its provider computes with it: `Ops.array` makes one from a numpy array,
`Ops.numpy` reads one."""
