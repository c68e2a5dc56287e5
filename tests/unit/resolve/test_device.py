"""--device: which one, what it makes of the other flags, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.cli.main import main
from quire.core.errors import ConfigError
from quire.models.weights.offload import OffloadPlan, held_weight_bytes, layer_weights
from quire.resolve import device as resolve_device
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved, resolve
from quire.system.gpu_facts import Gpu
from quire.system.hardware import Hardware

GIB = 2**30
CPU = Hardware(cores=4, memory_bytes=16 * GIB, available_bytes=12 * GIB)
GPU = replace(CPU, gpu=Gpu("A GPU", 80 * GIB))


def resolved(hardware: Hardware = GPU, **fields: Any) -> Resolved:
    given = {"model": "gpt2", "load_format": "dummy", "dtype": "bfloat16", **fields}
    return resolve(EngineArgs(**given), hardware)


@pytest.mark.parametrize(
    ("hardware", "fields", "device"),
    [
        (CPU, {}, "cpu"),
        (CPU, {"device": "cpu"}, "cpu"),
        (GPU, {}, "cuda"),
        (GPU, {"device": "cuda"}, "cuda"),
        (GPU, {"device": "cpu"}, "cpu"),
        (GPU, {"ops": "cpu"}, "cpu"),
        (GPU, {"tensor_parallel_size": 2}, "cpu"),
        (GPU, {"ops": "reference"}, "cuda"),
    ],
)
def test_the_device(hardware: Hardware, fields: dict[str, Any], device: str) -> None:
    config = resolved(hardware, **fields).config
    assert config.device == device
    assert config.ops == ("reference" if device == "cuda" else fields.get("ops", "auto"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("metal", "write mps"),
        ("rocm", "write cuda"),
        ("XPU", "Intel's GPUs"),
        ("tpu", "CPUs and on GPUs of NVIDIA, AMD and Apple"),
        ("gpu", "write cuda"),
        ("cuda:1", "CUDA_VISIBLE_DEVICES"),
        ("cdua", "did you mean cuda"),
    ],
)
def test_other_devices_are_refused_by_name(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=why):
        resolved(device=name)
    with pytest.raises(SystemExit):
        main(["plan", "gpt2", "--device", name])
    assert why in capsys.readouterr().err


AMD = replace(CPU, gpu=Gpu("An MI300", 80 * GIB, kind="rocm", arch="gfx942"))
APPLE = replace(CPU, gpu=Gpu("Apple M4 GPU", 8 * GIB, kind="mps"))


@pytest.mark.parametrize(
    ("hardware", "fields", "wanted"),
    [
        (AMD, {"device": "cuda"}, ("cuda", "triton", "Triton's kernels")),
        (AMD, {"device": "cuda", "ops": "reference"}, ("cuda", "reference", "plain torch")),
        (APPLE, {"device": "mps"}, ("mps", "reference", "plain torch")),
    ],
)
def test_an_untried_gpu_is_used_if_it_is_named(
    hardware: Hardware,
    fields: dict[str, Any],
    wanted: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve_device, "installed", lambda module: True)
    monkeypatch.setattr(resolve_device.env, "triton_interprets", lambda: False)
    found = resolved(hardware, **fields)
    device, ops, note = wanted
    assert (found.config.device, found.config.ops) == (device, ops)
    assert found.config.memory_budget_bytes == int(0.9 * hardware.gpu.memory_bytes)
    (said,) = (each for each in found.notes if each.startswith(f"device {device}: "))
    assert note in said
    assert f"never run on {hardware.gpu.maker}'s GPUs" in said
    for auto in ({}, {"ops": "reference"}):
        left = resolved(hardware, **auto)
        assert left.config.device == "cpu"
        assert any(f"--device {device} tries it" in each for each in left.notes)


def test_amds_gpus_that_kernels_do_not_compile_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_device, "installed", lambda module: True)
    monkeypatch.setattr(resolve_device.env, "triton_interprets", lambda: False)
    card = replace(CPU, gpu=Gpu("An MI250", 64 * GIB, kind="rocm", arch="gfx90a"))
    found = resolved(card, device="cuda")
    assert (found.config.device, found.config.ops) == ("cuda", "reference")
    assert any("compiled for gfx942, gfx950 alone" in note for note in found.notes)


@pytest.mark.parametrize(
    ("hardware", "fields", "why"),
    [
        (CPU, {"device": "mps"}, "no GPU of Apple's"),
        (GPU, {"device": "mps"}, "the GPU is A GPU. Use --device cuda"),
        (APPLE, {"device": "cuda"}, "the GPU is Apple M4 GPU. Use --device mps"),
        (APPLE, {"device": "mps", "ops": "triton"}, "Triton has no kernels"),
        (APPLE, {"device": "mps", "kv_cache_dtype": "fp8_e5m2"}, "no 8-bit floats; int8 takes"),
        (APPLE, {"device": "mps", "cpu_offload_gb": 1.0}, "shares the CPU's memory"),
    ],
)
def test_what_an_apple_gpu_cannot_do(
    hardware: Hardware, fields: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.core.extras.installed", lambda module: True)
    with pytest.raises(ConfigError, match=why):
        resolved(hardware, **fields)


@pytest.mark.parametrize(
    ("fields", "overlaps"),
    [
        ({"device": "cuda"}, True),
        ({"device": "cpu"}, False),
        ({"device": "cuda", "async_scheduling": False}, False),
        ({"device": "cpu", "async_scheduling": True}, True),
        ({"device": "cuda", "num_scheduler_steps": 2}, False),
        ({"device": "cuda", "speculative_config": '{"method": "ngram"}'}, False),
    ],
    ids=str,
)
def test_a_gpus_next_step_begins_early(fields: dict[str, Any], overlaps: bool) -> None:
    assert resolved(**fields).config.async_scheduling is overlaps


def test_memory_is_the_gpus() -> None:
    found = resolved(gpu_memory_utilization=0.25, swap_space=4.0)
    assert found.config.memory_budget_bytes == 20 * GIB
    assert any("A GPU" in note for note in found.notes)
    assert resolved().config.memory_budget_bytes == int(0.9 * 80 * GIB)
    assert resolved(CPU).config.memory_budget_bytes == 8 * GIB
    assert resolved(device="cpu").config.memory_budget_bytes == 8 * GIB
    with pytest.raises(ConfigError, match=r"ask for 11\.0 GiB of host memory"):
        resolved(swap_space=11.0)


def test_a_gpu_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` says why and takes the CPU; `cuda` is an error."""
    there = Gpu("A GPU", 80 * GIB)
    monkeypatch.setattr(resolve_device, "first_gpu", lambda: there)
    monkeypatch.setattr(resolve_device, "why_unused", lambda gpu: f"{gpu and gpu.name} is odd")
    found = resolved(CPU)
    assert found.config.device == "cpu"
    assert "device cpu: A GPU is not used, because A GPU is odd." in found.notes
    assert not any("not used" in note for note in resolved(CPU, device="cpu").notes)
    with pytest.raises(ConfigError, match="A GPU is odd") as caught:
        resolved(CPU, device="cuda")
    assert caught.value.param == "device"
    monkeypatch.setattr(resolve_device, "first_gpu", lambda: None)
    assert not any("not used" in note for note in resolved(CPU).notes)
    with pytest.raises(ConfigError, match="None is odd"):
        resolved(CPU, device="cuda")


def test_a_machine_without_a_gpu_is_simulated_on_one_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_device, "first_gpu", lambda: Gpu("A GPU", 80 * GIB))
    monkeypatch.setattr(resolve_device, "why_unused", lambda gpu: "")
    assert not any("not used" in note for note in resolved(CPU).notes)
    with pytest.raises(ConfigError, match="the simulated machine has no GPU"):
        resolved(CPU, device="cuda")


@pytest.mark.parametrize(
    ("capability", "ops"), [((7, 5), "reference"), ((8, 0), "triton"), ((0, 0), "triton")]
)
def test_triton_needs_a_recent_gpu(
    capability: tuple[int, int], ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_device, "installed", lambda module: True)
    monkeypatch.setattr(resolve_device.env, "triton_interprets", lambda: False)
    card = replace(CPU, gpu=Gpu("A GPU", 80 * GIB, capability=capability))
    found = resolved(card)
    assert found.config.ops == ops
    assert any("is 7.5 and Triton's kernels need 8.0" in note for note in found.notes) is (
        ops == "reference"
    )


def test_native_kernels_run_on_cpus() -> None:
    with pytest.raises(ConfigError, match="native kernels run on CPUs"):
        resolved(device="cuda", ops="cpu")
    with pytest.raises(ConfigError, match="device is 'tpu'"):
        resolved(device="tpu")


def test_quantized_weights_are_forms_not_packings() -> None:
    """The native rounding is the native kernels' own."""
    config = resolved(quantization="int8").config
    assert config.packing is None
    assert config.weight_forms


def test_half_precision_stays_on_a_gpu() -> None:
    assert resolved(dtype="auto", model="opt-125m").config.dtype == "float16"
    slow = resolved(CPU, dtype="auto", model="opt-125m", ops="reference")
    assert slow.config.dtype == "float32"


def test_offloaded_weights_lie_in_host_memory() -> None:
    plain = resolved().config
    layer = sum(layer_weights(plain).values()) // 12
    found = resolved(cpu_offload_gb=5 * layer / GIB)
    plan = OffloadPlan(found.config)
    assert len(plan.layers) == 5
    assert plan.planned_bytes == 5 * layer
    assert plan.ahead_bytes == 2 * layer
    assert held_weight_bytes(found.config) == held_weight_bytes(plain) - 3 * layer
    assert any("in host memory" in note for note in found.notes)


def test_no_more_than_the_host_has() -> None:
    small = replace(GPU, available_bytes=2**20)
    with pytest.raises(ConfigError, match="host memory that is free now") as caught:
        resolved(small, cpu_offload_gb=0.1)
    assert caught.value.param == "cpu_offload_gb"
