"""Devices: arrays that are sent, what CUDA is asked for, and that the fake device is strict."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import ConfigError, OutOfMemoryError
from quire.core.quantized import QuantizedWeight
from quire.ops.device import CPU
from quire.ops.providers import load_ops, open_device
from quire.ops.torch_ops.cuda import LARGE, CudaDevice
from quire.ops.torch_ops.metal import MetalDevice
from quire.ops.torch_ops.pinned import LEAST_BYTES, SENDS
from tests.arrays import array
from tests.fake_device import LAZY, FakeDevice, WrongDeviceError


def test_the_cpu_copies_nothing() -> None:
    assert open_device("cpu") is CPU
    array = np.zeros((2, 3), np.int32)
    (tensor,) = CPU.stage([array]).send()
    assert CPU.stage(()).send() == ()
    (other,) = load_ops("reference").device.stage([array]).send()
    rows = [device.mirror(array).send(1) for device in (CPU, load_ops("reference").device)]
    array[:] = 5
    for seen in (tensor, other, *rows):
        assert seen[0, 1] == torch.tensor(5)
    assert [len(each) for each in rows] == [1, 1]


def test_arrays_are_sent_anew_in_one_copy() -> None:
    """The host's may be written at once, however many sends are on their way."""
    device = FakeDevice()
    with device.watching():
        arrays = np.zeros(3, np.int64), np.zeros((2, 5), np.float32), np.zeros(0, np.int32)
        staged = device.stage(arrays)
        large = device.mirror(np.zeros((9, LEAST_BYTES), np.uint8))
        for number in range(1, 2000):
            for array in arrays:
                array[:] = number
            before = device.sent
            sent = staged.send()
            assert device.sent == before + 1
            if number % 400 == 1:
                assert [tensor.device for tensor in sent] == [LAZY] * 3
                assert [tensor.tolist() for tensor in sent] == [array.tolist() for array in arrays]
                large.send(number // 300)
        assert max(device.pins) <= SENDS * 6 * LEAST_BYTES


def test_only_some_rows_are_sent() -> None:
    device = FakeDevice(zeros=True)
    with device.watching():
        array = np.arange(12, dtype=np.int32).reshape(4, 3)
        mirror = device.mirror(array)
        assert mirror.send(0).tolist() == []
        assert mirror.send(3).tolist() == array[:3].tolist()
        array[:] = 7
        assert mirror.send(1).tolist() == [[7, 7, 7]]
        array[:] = 8
        assert mirror.send(4)[:1].tolist() == [[8, 8, 8]]


def test_arrays_on_their_way_are_left_alone() -> None:
    device = FakeDevice()
    with device.watching():
        memory, there = device.pinned(8), torch.zeros(8, dtype=torch.uint8, device=LAZY)
        before = device.record()
        there.copy_(memory, non_blocking=True)
        memory[0] = 1
        before.synchronize()  # which says nothing about the copy behind it
        with pytest.raises(WrongDeviceError, match="still being copied"):
            device.record().synchronize()
        device.faults.clear()


def test_only_pinned_memory_is_sent_beside_the_host() -> None:
    with FakeDevice().watching() as device:
        there = torch.zeros(3, device=LAZY)
        with pytest.raises(WrongDeviceError, match="not pinned"):
            there.copy_(torch.ones(3), non_blocking=True)
        device.faults.clear()
        assert there.copy_(torch.ones(3)).tolist() == [1.0] * 3


def test_the_fake_refuses_what_a_gpu_does() -> None:
    with FakeDevice().watching() as device:
        there, here = torch.ones(2, 3, device=LAZY), torch.ones(2, 3)
        for mixed in (
            lambda: there + here,
            lambda: torch.cat([here, there]),
            lambda: there[torch.tensor([1])],
            lambda: here[torch.zeros(1, dtype=torch.int64, device=LAZY)],
            lambda: torch.nn.functional.linear(there, here),
        ):
            with pytest.raises(WrongDeviceError, match="different devices"):
                mixed()
        device.faults.clear()
        for unreadable in (there.numpy, lambda: np.asarray(there)):
            with pytest.raises((RuntimeError, TypeError)):
                unreadable()
        assert (there * torch.tensor(2.0)).sum() == 12.0  # a number
        before = device.read
        assert float(there.sum()) == 6.0
        assert there.cpu().numpy().sum() == 6.0
        assert device.read == before + 2
        there[:, 1] = 0.0
        assert there.tolist() == [[1.0, 0.0, 1.0]] * 2
        assert there.new_zeros(2).device == torch.empty_like(there).device == LAZY
    with pytest.raises(WrongDeviceError, match="outside"):
        there + there


def test_what_was_wrong_is_not_forgotten() -> None:
    """Though whoever was told goes on."""
    watched = FakeDevice().watching()
    watched.__enter__()
    with contextlib.suppress(WrongDeviceError):
        torch.ones(2, device=LAZY) + torch.ones(2)
    with pytest.raises(WrongDeviceError, match="different devices"):
        watched.__exit__(None, None, None)


def test_a_queues_copy_is_garbage_until_it_is_awaited() -> None:
    device = FakeDevice()
    with device.watching():
        queue, there = device.copies(), torch.zeros(4, dtype=torch.uint8, device=LAZY)
        source = device.pinned(4).fill_(3)
        early = device.record()
        there += 1
        with pytest.raises(WrongDeviceError, match="still used"):
            queue.copy(there, source, early)
        device.faults.clear()
        copied = queue.copy(there, source, device.record())
        assert there.tolist() == [255] * 4
        device.wait(copied)
        assert there.tolist() == [3] * 4


def test_ops_of_a_device_are_the_references() -> None:
    device = FakeDevice()
    ops = load_ops("auto", device=device)
    assert (ops.provider, ops.device, ops.new_plan) == ("reference", device, None)
    with device.watching():
        packed = ops.pack_linear([torch.ones(2, 3), torch.ones(1, 3)])
        assert packed.weight.device == LAZY
        assert ops.linear(torch.ones(1, 3, device=LAZY), packed).tolist() == [[3.0] * 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_an_error_that_says_why() -> None:
    with pytest.raises(ConfigError, match="torch sees no GPU") as caught:
        open_device("cuda")
    assert caught.value.param == "--device"


class Runtime:
    """CUDA's, as far as pinned memory goes."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        self.registered[address] = nbytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.registered[address]
        return 0


def cuda(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, capability: tuple[int, int] = (9, 0)
) -> CudaDevice:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "compute_120"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return CudaDevice()


def test_a_gpu_that_torch_has_no_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, Runtime(), (7, 5))
    with pytest.raises(ConfigError, match=r"capability 7\.5 or later; A GPU has 7\.0") as caught:
        cuda(monkeypatch, Runtime(), (7, 0))
    assert caught.value.param == "--device"


def test_an_amd_gpu_that_torch_has_no_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: properties)
    with pytest.raises(ConfigError, match="no kernels for gfx942, which A GPU needs"):
        cuda(monkeypatch, Runtime())
    properties.gcnArchName = "sm_75:xnack-"  # which that torch has
    assert cuda(monkeypatch, Runtime()).torch.type == "cuda"


def test_pinned_memory_is_no_larger_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    device = cuda(monkeypatch, runtime)
    memory = device.pinned(10_000_001)
    assert memory.nbytes == 10_000_001
    assert not memory.any()
    assert runtime.registered == {memory.data_ptr(): 10_000_001}
    assert memory.data_ptr() % 4096 == 0  # its pages are nobody else's
    part = memory[5:]
    del memory
    gc.collect()
    assert runtime.registered  # a view still needs it
    del part
    gc.collect()
    assert not runtime.registered


def test_memory_that_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemoryError, match="refuses to pin"):
        cuda(monkeypatch, Runtime(2)).pinned(LARGE)


def test_streams_wait_for_the_places_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which call of torch.cuda follows which, with streams that only write it down."""
    told: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_event(self, event: Event) -> None:
            told.append(f"{self.name} waits for {event.name}")

    class Event:
        def record(self, stream: Stream) -> None:
            self.name = f"{stream.name}:{len(told)}"
            told.append(f"record {self.name}")

    main, entered = Stream("main"), []

    class Using:
        def __init__(self, stream: Stream) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            entered.append(self.stream.name)

        def __exit__(self, *error: object) -> None:
            entered.append("")

    device = cuda(monkeypatch, Runtime())
    for name, value in {
        "Stream": lambda device: Stream("copies"),
        "Event": Event,
        "current_stream": lambda device: main,
        "stream": Using,
        "mem_get_info": lambda device: (3, 10),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    to = SimpleNamespace(copy_=lambda source, non_blocking: told.append(f"copy {non_blocking}"))
    free = device.record()
    done = device.copies().copy(to, torch.zeros(1), free)  # type: ignore[arg-type]
    device.wait(done)
    assert told == [
        "record main:0", "copies waits for main:0", "copy True", "record copies:3",
        "main waits for copies:3",
    ]  # fmt: skip
    assert entered == ["copies", ""]
    assert device.memory() == (7, 10)


def streams(monkeypatch: pytest.MonkeyPatch, graph: Any) -> list[str]:
    """Let `graph` capture; return the streams that were current."""
    current = ["main"]
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    return current


def test_a_capture_that_fails_leaves_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own way out ends with the error of `capture_end`, on the stream of the capture."""

    @contextlib.contextmanager
    def graph(made: object, pool: object) -> Iterator[None]:
        current.append("capture")
        with contextlib.suppress(RuntimeError):
            yield
        raise RuntimeError("operation failed due to a previous error during capture")

    current = streams(monkeypatch, graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: ("pool", 0))
    device = cuda(monkeypatch, Runtime())
    with pytest.raises(RuntimeError, match="previous error"):
        device.capture(lambda: torch.zeros(1).view(3))
    assert current == ["main", "capture", "main"]
    assert gc.isenabled()


def test_graphs_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    @contextlib.contextmanager
    def graph(made: object, pool: object) -> Iterator[None]:
        calls.append(pool)
        yield

    streams(monkeypatch, graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: ("pool", len(calls)))
    device = cuda(monkeypatch, Runtime())
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: calls.append(size))
    graphs = [device.capture(lambda: calls.append("work"), 100) for _ in range(2)]
    assert calls == [("pool", 0), 100, "work", ("pool", 0), "work"]
    assert graphs[0] is not graphs[1]


def test_a_borrowed_result_is_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy reads the interface as torch does, of the host's memory."""
    device, given = cuda(monkeypatch, Runtime()), []

    def as_tensor(source: Any, device: torch.device) -> torch.Tensor:
        given.append(source)
        there = SimpleNamespace(__array_interface__=source.__cuda_array_interface__)
        return torch.from_numpy(np.asarray(there))

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    result = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    borrowed = device.borrowed(result)
    result += 1
    assert torch.equal(borrowed, result)
    assert not any(value is result for value in vars(given[0]).values())
    assert device.borrowed(result.t()).data_ptr() == result.data_ptr()
    assert len(given) == 1


def test_a_captured_graph_computes_again_where_it_did() -> None:
    device = FakeDevice()
    with device.watching():
        x = torch.ones(3, device=LAZY)
        results = []
        graph = device.capture(lambda: results.append((x + 1) * 2))
        x.fill_(5)
        graph.replay()
        assert results[0].tolist() == [12, 12, 12]
        for wrong in (
            x.tolist,
            lambda: x.copy_(torch.zeros(3)),
            lambda: torch.zeros(3) + 1,
        ):
            with pytest.raises(WrongDeviceError, match="a capture"):
                device.capture(wrong)
        device.faults.clear()


class MetalEvent:
    """As `torch.mps.Event`: of the one queue, at whose time it is recorded."""

    queue: list[str]

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing

    def record(self) -> None:
        self.at = len(self.queue)
        self.queue.append("record")

    def wait(self) -> None:
        self.queue.append(f"wait for {self.at}")

    def synchronize(self) -> None:
        self.queue.append(f"the host waits for {self.at}")

    def elapsed_time(self, end: MetalEvent) -> float:
        assert self.timed
        assert end.timed
        return 1000.0 * (end.at - self.at)


def test_what_metal_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="sees no GPU of Apple's"):
        open_device("mps")
    MetalEvent.queue = queue = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "Event", MetalEvent)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 7)
    device = open_device("mps")
    assert isinstance(device, MetalDevice)
    assert device.torch.type == "mps"
    assert device.memory() == (3, 7)
    memory = device.pinned(5)
    assert (memory.device.type, memory.tolist()) == ("cpu", [0] * 5)
    event = device.record()
    device.wait(event)
    device.finish()
    assert queue == ["record", "wait for 0", "record", "the host waits for 2"]
    assert device.seconds(lambda: queue.append("work")) == 2.0
    for unused in (lambda: device.capture(lambda: None), device.copies):
        with pytest.raises(NotImplementedError):
            unused()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_codes_that_a_device_lacks_become_numbers_on_the_host(kind: torch.dtype) -> None:
    device = FakeDevice(lacks=MetalDevice.lacks)
    ops = load_ops("reference", device=device)
    codes = torch.randn(6, 8).to(kind)
    weight = QuantizedWeight(array(codes), 8, np.full((6, 2), 0.3, np.float32), 4)
    wanted = load_ops("reference").pack_linear(weight).weight
    with device.watching():
        packed = ops.pack_linear(weight)
        assert packed.weight.device == LAZY
        assert packed.weight.tolist() == wanted.tolist()
        with pytest.raises(WrongDeviceError, match="float8"):
            codes.to(LAZY)
        device.faults.clear()
