"""Record what clients send: `python -m tests.clients.record [CLIENT …]`.

Needs the packages and programs; the tests need only what this writes, `corpus/CLIENT.jsonl`. Run it
again when a client has a new version, and read the difference.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.clients import programs
from tests.clients.capable import LOG, capable

CORPUS = Path(__file__).parent / "corpus"
PACKAGES = {
    "openai": "openai",
    "anthropic": "anthropic",
    "litellm": "litellm",
    "langchain": "langchain-openai",
    "openai_agents": "openai-agents",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim",
    "llama_index": "llama-index-llms-openai-like",
    "smolagents": "smolagents",
    "dspy": "dspy",
}
"""Modules of scenarios, and the distributions that they use."""
PROGRAMS = {"codex": programs.codex, "claude_code": programs.claude_code}
EXECUTABLES = {"codex": "codex", "claude_code": "claude"}
CLIENTS = (*PACKAGES, *PROGRAMS)
MAX_OF_PROGRAM = 4
"""Requests to keep of a program, which may ask on and on."""
LONGEST_TEXT = 64
"""Longer texts, and descriptions, are a client's own prompts: their words are left out."""
LONGEST_PLACEHOLDER = 200
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ID = re.compile(r"\b([a-z]+[_-])([0-9a-f]{16,}(?:-\d+)?)\b")
"""Of an answer, an item or a call."""


def record(client: str) -> list[dict[str, Any]]:
    """Return the requests of a client's scenarios, each with its scenario's name."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, capable(Path(folder)) as server:
        log = Path(folder, LOG)
        for name, scenario in _scenarios(client, server.url):
            log.write_text("")
            try:
                scenario()
            except Exception:
                print(f"{client}: {name} failed", file=sys.stderr)
                traceback.print_exc()
            rows += [{"scenario": name, **json.loads(line)} for line in log.open()]
    return rows[:MAX_OF_PROGRAM] if client in PROGRAMS else rows


def _scenarios(client: str, url: str) -> Iterator[tuple[str, Callable[[], object]]]:
    if client in PROGRAMS:
        yield "question", partial(PROGRAMS[client], url)
        return
    module = importlib.import_module(f"tests.clients.packages.of_{client}")
    for scenario in module.scenarios(url):
        yield scenario.__name__, scenario


def without_prompts(value: Any, name: str = "") -> Any:
    """Return `value` without its clients' prose, and without what differs from run to run."""
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT or name == "description":
            return "x" * min(len(value), LONGEST_PLACEHOLDER)
        return _UUID.sub(str(UUID(int=0)), value)
    if isinstance(value, list):
        return [without_prompts(each, name) for each in value]
    if isinstance(value, dict):
        return {key: without_prompts(each, key) for key, each in value.items()}
    return value


def numbered(text: str) -> str:
    """Return `text` with the server's ids replaced by numbers in the order of their appearance."""
    numbers: dict[str, int] = {}
    return _ID.sub(lambda id_: id_[1] + str(numbers.setdefault(id_[2], len(numbers) + 1)), text)


def main(clients: list[str]) -> int:
    CORPUS.mkdir(exist_ok=True)
    for client in clients or CLIENTS:
        rows = record(client)
        package = PACKAGES.get(client)
        known = version(package) if package else programs.version(EXECUTABLES[client])
        head = {"client": package or client, "version": known}
        lines = [json.dumps(without_prompts(row), ensure_ascii=False) for row in (head, *rows)]
        (CORPUS / f"{client}.jsonl").write_text(numbered("\n".join(lines)) + "\n")
        counts = Counter(row["path"].partition("?")[0] for row in rows)
        print(client, known, dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
