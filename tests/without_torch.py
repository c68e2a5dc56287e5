"""Pytest plugin: without torch or Triton, a module or test that imports it is skipped, not failed.

A finder behind all others sees only imports of modules that are not installed. It skips what tests
import, and the modules of Quire that exist for torch. An import elsewhere in Quire fails as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEED_TORCH = ("torch", "triton", "peft", "compressed_tensors")
IMPORTERS = tuple(
    str(ROOT / path)
    for path in (
        "benchmarks/",
        "tests/",
        "src/quire/ops/torch_ops/",
        "src/quire/ops/triton/",
        "src/quire/profile/torch_profiler.py",
        "src/quire/bench/peers/",
    )
)


class SkipMissing:
    """A finder that finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        frame = _importer()
        importer = frame.f_code.co_filename if frame is not None else ""
        if name in NEED_TORCH and importer.startswith(IMPORTERS):
            halves = _files_above(frame)  # pytest leaves what it began for other importers
            for half, module in list(sys.modules.items()):
                if getattr(module, "__file__", None) in halves:
                    del sys.modules[half]
            file = Path(importer).relative_to(ROOT)
            pytest.skip(f"{file} needs {name}, which is not installed", allow_module_level=True)


def _importer() -> FrameType | None:
    """Return the frame with the import statement that runs."""
    frame: FrameType | None = sys._getframe(2)
    between = "<frozen importlib", "safetensors/torch.py"  # which imports torch for its importer
    while frame is not None and any(part in frame.f_code.co_filename for part in between):
        frame = frame.f_back
    return frame


def _files_above(frame: FrameType | None) -> set[str]:
    """Return the files of the modules that are being imported."""
    files: set[str] = set()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def pytest_configure() -> None:
    sys.meta_path.append(SkipMissing)
