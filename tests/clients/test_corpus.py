"""Every request that real clients were seen to send is answered; see `record`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.hasty_model import write_hasty_model
from tests.clients.record import CLIENTS, CORPUS
from tests.e2e.serving import Server, serving

REFUSED = {"anthropic runner": "thread_unsupported_request"}
"""What refusals of a client's scenario say; the client sends another request then, or
docs/compatibility.md has the reason."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hasty_model(tmp_path_factory.mktemp("models") / "hasty")


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[Server]:
    with serving(folder, "--tool-call-parser", "hermes") as running:
        yield running


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Server]:
    with serving(folder, "--runner", "pooling") as running:
        yield running


def test_every_client_is_recorded() -> None:
    assert {path.stem for path in CORPUS.glob("*.jsonl")} == set(CLIENTS)


@pytest.mark.parametrize("client", CLIENTS)
def test_replay(client: str, hasty: Server) -> None:
    rows = [row for row in _rows(client) if "/embeddings" not in row["path"]]
    assert rows
    ids: dict[str, str] = {}
    refused = []
    for row in rows:
        fault = _replay(row, ids, hasty)
        expected = REFUSED.get(f"{client} {row['scenario']}")
        if fault and (expected is None or expected not in fault):
            refused.append(f"{row['scenario']}, {row['path']}: {fault}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("client", ["openai", "langchain"])
def test_replay_of_embeddings(client: str, embedder: Server) -> None:
    rows = [row for row in _rows(client) if "/embeddings" in row["path"]]
    assert rows
    assert [fault for row in rows if (fault := _replay(row, {}, embedder))] == []


def _replay(row: dict[str, Any], ids: dict[str, str], server: Server) -> str | None:
    """Send a request again; return what is wrong with the answer."""
    path, headers = row["path"], row["headers"]
    if row["method"] == "GET":
        answer = server.http.get(path, headers=headers)
        return None if answer.is_success else answer.text
    body = json.dumps(row["body"])
    for recorded, given in ids.items():
        body = body.replace(f'"{recorded}"', f'"{given}"')
    answer = server.http.post(
        path, content=body, headers={"content-type": "application/json", **headers}
    )
    if not answer.is_success:
        return answer.text
    if row["body"].get("stream"):
        return _stream_error(answer.text)
    if "answered_as" in row:
        ids[row["answered_as"]] = answer.json()["id"]
    return None


def _stream_error(text: str) -> str | None:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    found = [json.loads(event) for event in events if event != "[DONE]"]
    errors = [event for event in found if event.get("error")]
    return json.dumps(errors[0]) if errors or not found else None


def _rows(client: str) -> list[dict[str, Any]]:
    """The requests of a client; the first line of its file names the version."""
    _, *lines = (CORPUS / f"{client}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
