"""The kernels compile for cards that are not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.tiny_model import write_tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("target", ["80", "89", "90", "gfx942", "gfx950"])
def test_kernels_compile(target: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.triton.compiling", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for kernel in (
        "attention", "merge", "product", "rope_kv_write", "hadamard", "combine",
        "write", "causal_conv1d", "gated_delta_rule", "mamba2_scan", "gated_norm", "shrink",
        "expand", "mask", "bias", "penalize", "totals", "fill", "peaks",
        "narrow", "ties", "scores", "settle", "route", "group", "heads",
    ):  # fmt: skip
        assert kernel in done.stdout


@pytest.mark.slow
def test_a_start_up_to_the_driver(tmp_path: Path) -> None:
    """Prompts, decode steps and their graphs; drawn tokens and greedy ones."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    model = str(write_tiny_model(tmp_path))
    command = [sys.executable, "-m", "tests.triton.starting", "90", model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "launches of" in done.stdout
    assert "Error" not in done.stderr
