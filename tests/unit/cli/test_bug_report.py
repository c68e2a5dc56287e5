"""`quire bug-report`: what is in it, and what is not."""

from __future__ import annotations

import getpass
import json
import socket
import zipfile
from pathlib import Path

import pytest

from quire.cli.bug_report import redactor
from quire.cli.main import main


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: [hidden]"),
        ("quire serve --api-key hunter2 m", "quire serve [hidden] m"),
        ('{"QUIRE_API_KEY": "abcdefgh12"}', '{"[hidden]"}'),
        ("with sk-abcdefghij and hf_abcdefghij", "with [hidden] and [hidden]"),
        ("https://me:pass@proxy/x", "https://[hidden]@proxy/x"),
        ("cannot open '/home/bob/models/gem/config.json'", "cannot open '…/config.json'"),
        ("~/.cache/quire is full", "…/quire is full"),
        ("client 10.1.2.3:55", "client [address]:55"),
    ],
)
def test_what_is_private_is_taken_out(text: str, shown: str) -> None:
    assert redactor()(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Uvicorn on http://127.0.0.1:8000/v1/chat/completions",
        "the first token generation took 0.31 s, 12.5 tok/s and/or more",
        '"eos_token": "<|endoftext|>", "bos_token_id": 128000, "max_tokens": 12345678',
        'vllm:prompt_tokens_total{engine="0"} 1234567890.0',
    ],
)
def test_what_is_not_private_stays(text: str) -> None:
    assert redactor()(text) == text


def test_the_names_of_machine_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-7")
    monkeypatch.setattr(getpass, "getuser", lambda: "bob")
    assert redactor()("bob on gpu-box-7: bobbin") == "USER on HOST: bobbin"


def test_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "very-secret-key")
    log = tmp_path / "serve.log"
    log.write_text(f"started with very-secret-key?\nBearer very-secret-key\nin {tmp_path}/folder\n")
    out = tmp_path / "report.zip"
    words = ["bug-report", "embedded", "--port", "0", "--output", str(out), "--log", str(log)]
    assert main([*words, "--url", "http://127.0.0.1:9", "--max-num-seqs", "7"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n"
    assert "nothing was sent" in printed.err
    with zipfile.ZipFile(out) as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert "very-secret-key" not in "".join(texts.values())
    assert str(tmp_path) not in "".join(texts.values())
    machine = json.loads(texts["machine.json"])
    assert machine["packages"]["numpy"]
    assert machine["environment"]["QUIRE_API_KEY"] == "[hidden]"
    values = {row["name"]: row["value"] for row in json.loads(texts["config.json"])}
    assert values["max_num_seqs"] == 7
    assert not {"output", "url", "log"} & values.keys()
    assert {row["name"] for row in json.loads(texts["doctor.json"])} >= {"python", "memory"}
    assert "not available" in texts["server/metrics.txt"]
    assert main(words) == 2  # it is there: never written over
    assert "cannot be written" in capsys.readouterr().err


def test_what_is_wrong_is_in_the_report_and_does_not_prevent_it(tmp_path: Path) -> None:
    out = tmp_path / "report.zip"
    assert (
        main(["bug-report", "no-such-model/at-all/here", "--port", "0", "--output", str(out)]) == 0
    )
    with zipfile.ZipFile(out) as bundle:
        assert "not available" in bundle.read("config.json").decode()
