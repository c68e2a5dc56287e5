"""Weights streamed from host memory: whatever the device does first, each use sees its layer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.ops.device import Event
from quire.ops.graphs import Graph
from quire.ops.op_times import TimedOps
from quire.ops.torch_ops.devices import CopyQueue, TorchAccelerator
from quire.ops.torch_ops.reference import DenseWeight, linear, pack_linear
from quire.ops.torch_ops.weight_stream import Slab, StreamedWeight, StreamingOps, WeightStream
from tests.examples import examples


@dataclass
class Mark:
    """A place in a queue, which the queue comes to when it likes."""

    reached: bool = False

    def synchronize(self) -> None:
        raise AssertionError("the host waits")


@dataclass
class Queue:
    """Work to be done in turn; `None` in place of a function is a wait for a mark."""

    work: list[tuple[Callable[[], None] | None, Mark]] = field(default_factory=list)

    def step(self) -> bool:
        """Do the next thing, if it need not wait."""
        if not self.work:
            return False
        do, mark = self.work[0]
        if do is None and not mark.reached:
            return False
        self.work.pop(0)
        if do is not None:
            do()
            mark.reached = True
        return True


class Scrambled(TorchAccelerator):
    """Two queues, of which a random one goes on at any time, as late or as early as it may.

    A copy takes two steps, between which there is half of it.
    """

    torch = torch.device("cpu")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.compute, self.copying = Queue(), Queue()
        self.pins: list[int] = []

    def pinned(self, nbytes: int) -> Tensor:
        self.pins.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)

    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        raise NotImplementedError

    def seconds(self, work: Callable[[], object]) -> float:
        raise NotImplementedError

    def record(self) -> Event:
        mark = Mark()
        self.compute.work.append((lambda: None, mark))
        return mark

    def wait(self, event: Event) -> None:
        assert isinstance(event, Mark)
        self.compute.work.append((None, event))

    def copies(self) -> CopyQueue:
        return self

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        assert isinstance(after, Mark)
        done, half = Mark(), len(source) // 2
        self.copying.work += [
            (None, after),
            (lambda: to[:half].copy_(source[:half]), Mark()),  # type: ignore[list-item]
            (lambda: to[half:].copy_(source[half:]), done),  # type: ignore[list-item]
        ]
        return done

    def memory(self) -> tuple[int, int]:
        return 0, 2**30

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice([self.compute, self.copying]).step()

    def finish(self) -> None:
        while self.compute.work:
            moved = self.copying.step() if self.random.random() < 0.5 else self.compute.step()
            if not moved and not self.compute.step() and not self.copying.step():
                raise AssertionError("both queues wait for each other")


def uses(layers: int, rounds: int, draw: random.Random) -> list[int]:
    """Layers in their order, now and then a step that ends early and is begun again."""
    order: list[int] = []
    for _ in range(rounds):
        end = layers if draw.random() < 0.7 else draw.randint(0, layers)
        order += [layer for layer in range(end) for _ in range(draw.randint(1, 3))]
    return order


def run(stream: WeightStream, device: Scrambled, sizes: list[int], order: list[int]) -> list[str]:
    """What was seen wrongly: layer i is made of bytes i + 1."""
    wrong: list[str] = []

    def compute(buffer: Tensor, layer: int, at: int) -> Callable[[], None]:
        def read() -> None:
            if not bool((buffer[: sizes[layer]] == layer + 1).all()):
                wrong.append(f"use {at} of layer {layer}")

        return read

    for at, layer in enumerate(order):
        buffer = stream.use(layer)
        device.compute.work.append((compute(buffer, layer, at), Mark()))
        device.go_on(device.random.randint(0, 6))
    device.finish()
    return wrong


def made(device: Scrambled, sizes: list[int], buffers: int) -> WeightStream:
    slab = torch.cat([torch.full((n,), i + 1, dtype=torch.uint8) for i, n in enumerate(sizes)])
    ends = torch.tensor(sizes).cumsum(0).tolist()
    pieces = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return WeightStream(device, slab, pieces, buffers)


@settings(max_examples=examples(300))
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.integers(2, 4),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_every_use_sees_its_layer(sizes: list[int], buffers: int, rounds: int, seed: int) -> None:
    device = Scrambled(seed)
    stream = made(device, sizes, buffers)
    assert stream.device_bytes == min(buffers, len(sizes)) * max(sizes)
    order = uses(len(sizes), rounds, device.random)
    assert run(stream, device, sizes, order) == []


@pytest.mark.parametrize("broken", ["wait", "after"])
def test_the_proof_sees_what_is_missing(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either of its two waits the stream fails."""
    if broken == "wait":
        monkeypatch.setattr(Scrambled, "wait", lambda self, event: None)
    else:
        real = Scrambled.copy
        monkeypatch.setattr(
            Scrambled, "copy", lambda self, to, source, after: real(self, to, source, Mark(True))
        )
    seen = 0
    for seed in range(30):
        device = Scrambled(seed)
        sizes = [4, 4, 4, 4]
        stream = made(device, sizes, 2)
        seen += bool(run(stream, device, sizes, uses(4, 4, device.random)))
    assert seen > 10


def test_copies_run_one_layer_ahead() -> None:
    device = Scrambled(0)
    stream = made(device, [4, 4, 4], 2)
    first = stream.use(0)
    assert len(device.copying.work) == 6  # of layers 0 and 1
    assert stream.use(0) is first
    assert len(device.copying.work) == 6
    second = stream.use(1)
    assert second is not first
    assert len(device.copying.work) == 9
    assert stream.use(2) is first
    assert stream.use(0) is second  # round and round


class Plain(Scrambled):
    """Copies at once."""

    def wait(self, event: Event) -> None:
        pass

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        to.copy_(source)
        return Mark(True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moved_weights_compute_the_same_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    device = Plain(0)
    shapes = [(24, 10), (7, 24)]
    layers = 4
    packed = [
        [pack_linear(torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)) for n, k in shapes]
        for _ in range(layers)
    ]
    size = sum(-(-n * k * dtype.itemsize // 64) * 64 for n, k in shapes)
    slab = Slab(device, [size] * layers, alignment=64, buffers=2)
    assert device.pins == [slab.nbytes] == [size * layers]
    moved = [[slab.move(i, weight) for weight in layer] for i, layer in enumerate(packed)]
    ops = StreamingOps()
    x = torch.randn(3, 10).to(dtype)
    for _ in range(3):
        for layer, streamed in zip(packed, moved, strict=True):
            for weight, there in zip(layer, streamed, strict=True):
                given = x if weight.weight.shape[1] == 10 else torch.ones(3, 24, dtype=dtype)
                assert torch.equal(ops.linear(given, there), linear(given, weight))
                assert (there.shape, there.nbytes) == (weight.weight.shape, weight.weight.nbytes)
                assert torch.equal(ops.linear(given, weight), linear(given, weight))
    with pytest.raises(ValueError, match="do not fit into layer 0"):
        slab.move(0, packed[0][0])


def test_a_streamed_weight_is_no_tensor() -> None:
    """Nothing can use it without asking the stream."""
    device = Plain(0)
    slab = Slab(device, [64], alignment=64, buffers=2)
    moved = slab.move(0, pack_linear(torch.ones(2, 2)))
    assert isinstance(moved, StreamedWeight)
    assert isinstance(moved.on_device(), DenseWeight)
    with pytest.raises(TypeError, match="no product with a StreamedWeight"):
        linear(torch.ones(1, 2), moved)


def test_a_profile_knows_streamed_weights() -> None:
    device = Plain(0)
    slab = Slab(device, [256], alignment=256, buffers=2)
    moved = slab.move(0, pack_linear(torch.ones(6, 10)))
    timed = TimedOps(StreamingOps(), {id(moved): "layers.0.mlp.down"})
    timed.count_ops(True)
    timed.table.linear(torch.ones(3, 10), moved)
    [found] = timed.op_times()
    assert (found.name, found.module, found.dtype) == ("linear", "layers.0.mlp.down", "float32")
    assert (found.rows, found.flops) == (3, 2 * 3 * 6 * 10)
    assert found.nbytes == 4 * (6 * 10 + 3 * 10 + 3 * 6)
