"""What keeps kernels from being launched: each reason is an error that says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quire.core.errors import ConfigError
from quire.ops.device import CPU
from quire.ops.triton import launch

OLD = "gfx90a:sramecc+:xnack-"
CARD: Any = SimpleNamespace(is_host=False)


def test_the_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    launch.check(CPU)
    with pytest.raises(ConfigError, match="computes on the CPU alone"):
        launch.check(CARD)
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(ConfigError, match="run on a GPU"):
        launch.check(CPU)


def test_an_old_gpu_or_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles a module of its own before the first kernel."""

    def target() -> None:
        if failing:
            raise failing[0]

    failing: list[Exception] = []
    active = SimpleNamespace(get_current_target=target)
    runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    monkeypatch.setattr(launch, "triton", SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match=r"capability 8\.0; this GPU has 7\.5"):
        launch.check(CARD)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    launch.check(CARD)
    failing.append(RuntimeError("Failed to find C compiler."))
    with pytest.raises(ConfigError, match="Failed to find C compiler") as caught:
        launch.check(CARD)
    assert "python3-dev" in str(caught.value)


def test_amds_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the launches of capability 8.0, whatever torch says of theirs, and their own
    shared memory."""
    active = SimpleNamespace(get_current_target=lambda: None)
    runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    device = torch.device("cuda", 7)
    for cached in (launch.capability, launch.overlap, launch.shared_bytes):
        cached.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(launch, "triton", SimpleNamespace(runtime=runtime))
        patched.setattr(launch, "interpreted", lambda: False)
        patched.setattr(torch.version, "hip", "7.0")
        patched.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 4))
        properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
        patched.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
        launch.check(CARD)
        assert launch.overlap(device) == {"overlap": False}
        assert not launch.has_float8(device)
        assert launch.shared_bytes(device) == 64 * 1024
        assert launch.stages(device, 3, 12 * 1024, 32 * 1024) == 1
        properties.gcnArchName = OLD
        with pytest.raises(ConfigError, match="compiled for gfx942, gfx950; this GPU is gfx90a"):
            launch.check(CARD)
    for cached in (launch.capability, launch.overlap, launch.shared_bytes):
        cached.cache_clear()
