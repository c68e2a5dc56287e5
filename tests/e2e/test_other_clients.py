"""litellm and langchain-openai, unchanged, against a real server; see `client_scenarios`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import Server

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("library", "scenarios"),
    [
        # Both send through openai's client (`test_openai_client`) and take seconds to import.
        # `clients/test_corpus.py` answers what they sent.
        pytest.param(
            "litellm",
            "chats_and_streams a_tool_and_a_structure responses embeddings typed_errors",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "langchain",
            "chats_and_streams a_tool_and_a_structure embeddings typed_errors",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scenarios(library: str, scenarios: str, server: Server, encoder: Server) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.client_scenarios"]
    done = subprocess.run(
        [*command, library, server.url, encoder.url],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    passed = [line for line in done.stdout.splitlines() if line in scenarios.split()]
    assert passed == scenarios.split()
