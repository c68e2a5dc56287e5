"""What keeps kernels from being launched: each reason is an error that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.errors import PTXASError

from quire.core.errors import ConfigError
from quire.ops.device import CPU
from quire.ops.triton import launch

OLD = "gfx90a:sramecc+:xnack-"
CARD: Any = SimpleNamespace(is_host=False)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    launch.card.cache_clear()
    yield
    launch.card.cache_clear()


def test_the_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    launch.check(CPU)
    with pytest.raises(ConfigError, match="computes on the CPU alone"):
        launch.check(CARD)
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(ConfigError, match="run on a GPU"):
        launch.check(CPU)


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Triton's driver, of a card that is not there: kernels end with `answer`."""
    properties = {"max_shared_mem": 64 * 1024, "multiprocessor_count": 304}
    driver = SimpleNamespace(
        get_current_target=lambda: None,
        utils=SimpleNamespace(get_device_properties=lambda number: properties),
        answer=None,
    )

    class Fill:
        def __getitem__(self, grid: object) -> Any:
            def run(ids: torch.Tensor, *args: object, **given: object) -> None:
                assert int(ids[0]) >= 0  # which it leaves alone
                if driver.answer is not None:
                    raise driver.answer

            return run

    runtime = SimpleNamespace(driver=SimpleNamespace(active=driver))
    monkeypatch.setattr(launch, "triton", SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(launch, "fill", Fill())
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    ones = torch.ones(1, dtype=torch.int64)
    monkeypatch.setattr(torch, "full", lambda *given, **more: ones)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return driver


def test_an_old_gpu(on_card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ConfigError, match=r"capability 8\.0; this GPU has 7\.5"):
        launch.check(CARD)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    launch.check(CARD)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler."),
        AssertionError("libcuda.so cannot found!"),  # as Triton has it
        ImportError("cuda_utils.so: undefined symbol: cuGetErrorString"),
        FileNotFoundError("/sbin/ldconfig"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_compiler(
    error: Exception, on_card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles a module of its own before the first kernel."""

    def target() -> None:
        raise error

    on_card.get_current_target = target
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(ConfigError, match=str(error)) as caught:
        launch.check(CARD)
    assert "python3-dev" in str(caught.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("device kernel image is invalid"), PTXASError("no ptxas")], ids=repr
)
def test_a_driver_that_is_older_than_the_assembler(
    error: Exception, on_card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start ends before weights are read."""
    on_card.answer = error
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(ConfigError, match=r"driver does not run what Triton compiles") as caught:
        launch.check(CARD)
    assert "TRITON_PTXAS_BLACKWELL_PATH" in str(caught.value)


def test_amds_gpus(on_card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start no kernel early and have none of NVIDIA's types and instructions, whatever
    capability torch tells of them."""
    device = torch.device("cuda", 7)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 4))
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    launch.check(CARD)
    assert launch.overlap(device) == {"overlap": False}
    assert launch.card(device) == launch.Card(
        64 * 1024, 304, float8=False, options={"matrix_instr_nonkdim": 16}
    )
    assert launch.stages(device, 3, 12 * 1024, 32 * 1024) == 1
    properties.gcnArchName = OLD
    with pytest.raises(ConfigError, match="compiled for gfx942, gfx950; this GPU is gfx90a"):
        launch.check(CARD)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)], ids=str)
def test_nvidias_gpus(
    capability: tuple[int, int], on_card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda", 7)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    found = launch.card(device)
    assert (found.float8, found.early) == (capability >= (8, 9), capability >= (9, 0))
    assert found.pairs
    assert launch.overlap(device)["overlap"] == found.early
