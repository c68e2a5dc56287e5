"""Triton's kernels on the fake device: each launch is one operation of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from quire.ops.triton import launch
from tests.fake_device import FakeDevice, OnDevice

NEEDED = ("fill",)
"""Interpreted in any case: without it ids are no tokens."""


class Launches:
    """What was launched: each kernel with its grid and the shapes of its tensors.

    Args:
        run: interpret the kernels; else their results stay what the memory held.
    """

    def __init__(self, run: bool) -> None:
        self.run = run
        self.seen: list[tuple[Any, ...]] = []


@contextmanager
def launching(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, *, run: bool
) -> Iterator[Launches]:
    """Let launches on the device's tensors through to the interpreter."""
    launches, interpret = Launches(run), InterpretedFunction.run

    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        name = self.fn.__name__
        if any(isinstance(a, Tensor) and not isinstance(a, OnDevice) for a in args):
            raise device.wrong(f"{name}: Triton cannot access a pointer (cpu tensor?)")

        def work() -> None:
            if launches.run or name in NEEDED:
                there = [a.there if isinstance(a, OnDevice) else a for a in args]
                interpret(self, *there, grid=grid, warmup=warmup, **given)

        shapes = [tuple(a.shape) if isinstance(a, OnDevice) else a for a in args]
        launches.seen.append((name, grid, *shapes, *sorted(map(str, given.items()))))
        device.launch(work, [a for a in args if isinstance(a, OnDevice)])

    with monkeypatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", launched)
        patch.setattr(launch, "check", lambda device: None)
        yield launches
