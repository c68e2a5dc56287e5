"""What a start waits for: imports that are needed to be ready, and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = {"huggingface_hub", "jinja2", "llguidance", "numpy", "prometheus_client", "torch"}
"""Packages that the API process imports for the first request that needs them, or never."""
OF_SERVER = {"h11", "starlette", "tokenizers"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("quire.cli.serve", LATER | OF_SERVER | {"asyncio"}),
        ("quire.frontend.client.configure", LATER | OF_SERVER),  # the core waits for this
        ("quire.server.serve", LATER),
        ("quire.server.monitoring.watch", LATER),
        ("quire.frontend.workers.tokenizer_worker", LATER | {"starlette"}),
    ],
)
def test_a_start_imports_what_it_needs(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert not absent & set(done.stdout.split())
