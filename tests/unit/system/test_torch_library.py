"""torch's library, loaded before torch is imported."""

import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from quire.system import torch_library
from quire.system.garbage import no_collection

AHEAD = """
import sys, threading
from quire.system import torch_library
torch_library.load_ahead()
[thread] = [t for t in threading.enumerate() if t.name == "torch-library"]
thread.join()
maps = open("/proc/self/maps").read()
assert "torch" not in sys.modules
assert "libtorch_cpu" in maps and "libtorch_python" not in maps
import torch
assert torch.ones(2).sum() == 2
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's own import loads it")
@pytest.mark.skipif(torch_library.torch_cuda_version() is not None, reason="for CPUs alone")
def test_torch_is_imported_with_the_library_that_is_there() -> None:
    subprocess.run([sys.executable, "-c", AHEAD], check=True)


def test_without_it_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch_library, "torch_cuda_version", lambda: None)
    for folder in (None, tmp_path):
        monkeypatch.setattr(torch_library, "torch_folder", lambda folder=folder: folder)
        torch_library.load()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cpu.so").write_text("no library")
    torch_library.load()


def test_garbage_is_searched_for_again() -> None:
    assert gc.isenabled()
    with no_collection():
        with suppress(KeyError), no_collection():
            raise KeyError
        assert not gc.isenabled()
    assert gc.isenabled()
