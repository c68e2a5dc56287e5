"""Coding agents that are programs: run them in an empty home, against `url`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.clients.tasks import QUESTION

SECONDS = 120


def version(program: str) -> str:
    """Return what the program says of itself."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return told.stdout.strip()


def codex(url: str) -> None:
    """Ask Codex one question; it speaks the Responses API."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as home:
        config = f"""
            model = "tiny"
            model_provider = "local"
            [model_providers.local]
            name = "local"
            base_url = "{url}/v1"
            wire_api = "responses"
            env_key = "LOCAL_KEY"
            """
        Path(home, "config.toml").write_text(config)
        _run(home, ["codex", "exec", "--skip-git-repo-check", QUESTION], CODEX_HOME=home)


def claude_code(url: str) -> None:
    """Ask Claude Code one question; it speaks the Messages API."""
    with tempfile.TemporaryDirectory() as home:
        fields = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        _run(home, ["claude", "-p", QUESTION, "--model", "tiny"], **fields)


def _run(home: str, command: list[str], **environment: str) -> None:
    subprocess.run(
        command,
        cwd=home,
        env={**os.environ, "HOME": home, "LOCAL_KEY": "none", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=SECONDS,
        check=True,
    )
