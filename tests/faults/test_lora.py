"""Rows 52 and 53: adapters that cannot be served, and adapters that come and go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.serving import Server, serving
from tests.e2e.tiny_adapter import Tensors, write_tiny_adapter
from tests.faults.requests import assert_no_secret, assert_refused, assert_unharmed, extremes

Q = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def lora_server(tiny_model: Path, folder: Path) -> Iterator[Server]:
    write_tiny_adapter(folder / "good", 1)
    write_tiny_adapter(folder / "other", 2)
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8")
    flags = (*flags, "--num-gpu-blocks-override", "256")
    named = ("--lora-modules", f"first={folder / 'good'}", "--lora-dir", str(folder))
    with serving(tiny_model, *flags, *named) as running:
        yield running


def load(server: Server, name: str, path: str, **fields: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path, **fields}
    return server.http.post("/v1/load_lora_adapter", json=body)


def unload(server: Server, name: str) -> httpx.Response:
    return server.http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def names(server: Server) -> set[str]:
    return {card["id"] for card in server.http.get("/v1/models").json()["data"]}


def _spoil(tensors: Tensors, name: str, value: float) -> None:
    tensors[name][0, 0] = value


BAD: dict[str, tuple[dict[str, Any], Callable[[Tensors], object], tuple[str, ...]]] = {
    "rank": ({"rank": 9}, lambda t: None, ("r is 9", "rank 8")),
    "target": ({"target_modules": ["lm_head"]}, lambda t: None, ("lm_head", "q_proj")),
    "unnamed": ({"target_modules": ["q_proj"]}, lambda t: None, ("down_proj", "none of the")),
    "unknown": (
        {}, lambda t: t.update({A.replace("q_proj", "x_proj"): t[A]}), ("0.self_attn.x_proj",)
    ),
    "shape": ({}, lambda t: t.update({A: t[A][:, :-1].copy()}), (A, "[4, 63]", "[4, 64]")),
    "transposed": ({}, lambda t: t.update({B: t[B].T.copy()}), (B, "[4, 64]", "[64, 4]")),
    "half": ({}, lambda t: t.pop(B), ("q_proj", "lora_B")),
    "other rank": ({"r": 3}, lambda t: None, ("[4, ", "[3, ")),
    "NaN": ({}, lambda t: _spoil(t, A, np.nan), (A, "NaN")),
    "infinity": ({}, lambda t: _spoil(t, B, -np.inf), (B, "NaN or infinite")),
    "empty": ({}, lambda t: t.clear(), ("holds no tensors",)),
    "integers": ({}, lambda t: t.update({A: t[A].astype(np.int64)}), (A, "I64")),
    "missing target": (
        {}, lambda t: [t.pop(n) for n in [*t] if "down_proj" in n], ("down_proj", "nothing for it")
    ),
    "bias": ({"bias": "all"}, lambda t: None, ("bias", "'all'")),
    "DoRA": ({"use_dora": True}, lambda t: None, ("use_dora",)),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, lambda t: None, ("modules_to_save",)),
    "IA3": ({"peft_type": "IA3"}, lambda t: None, ("IA3", "LORA")),
    "alpha": ({"lora_alpha": "much"}, lambda t: None, ("lora_alpha", "much")),
    "no rank": ({"r": None}, lambda t: None, ("r is None",)),
}  # fmt: skip


def test_row_52_bad_adapters_are_refused(lora_server: Server, folder: Path) -> None:
    server, before = lora_server, names(lora_server)
    canary, first = server.text(), server.text(model="first")
    for name, (fields, edit, words) in BAD.items():
        write_tiny_adapter(folder / name, edit=edit, **fields)
        response = load(server, "bad", name)
        assert_refused(response, "lora_path", *words)
        assert server.complete(model="bad").status_code == 404
    cut = write_tiny_adapter(folder / "cut") / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    assert_refused(load(server, "bad", "cut"), "lora_path", "adapter_model.safetensors")
    pickled = write_tiny_adapter(folder / "pickled") / "adapter_model.safetensors"
    pickled.rename(pickled.with_suffix(".bin"))
    assert_refused(load(server, "bad", "pickled"), "lora_path", "pickled weights are not read")
    assert_refused(load(server, "bad", "nothing"), "lora_path", "adapter_config.json")
    assert names(server) == before
    assert server.text(model="first") == first != canary
    assert_unharmed(server, canary)


def test_row_52_paths_lead_nowhere_else(lora_server: Server, folder: Path, tmp_path: Path) -> None:
    server = lora_server
    canary = server.text()
    outside = write_tiny_adapter(tmp_path / "outside")
    (folder / "link").symlink_to(outside)
    up = f"good/../../{tmp_path.name}/outside"
    for path in ("..", "../outside", "good/../good", up, str(outside), "link", "", "\0"):
        assert_refused(load(server, "bad", path), "lora_path", "must be a folder inside")
    assert_refused(load(server, "bad", "a" * 5000), "lora_path", "cannot be read")
    assert_refused(load(server, "", "good"), "lora_name", "1 to 256")
    assert_refused(load(server, "tiny", "good"), "lora_name", "the model itself")
    assert_refused(load(server, "first", "good"), "lora_name", "already")
    assert server.http.post("/v1/load_lora_adapter", json={"lora_name": "x"}).status_code == 400
    assert unload(server, "never").status_code == 404
    assert_unharmed(server, canary)


def test_without_a_folder_nobody_loads(server: Server) -> None:
    for response in (load(server, "a", "good"), unload(server, "a")):
        assert response.status_code == 403
        assert "--lora-dir" in response.json()["error"]["message"]
        assert_no_secret(response.text)


def test_row_53_load_and_unload_while_requests_run(lora_server: Server, folder: Path) -> None:
    """Whoever was let in gets all of its answer, with the adapter it asked for; whoever comes
    after gets 404; and the name may mean another adapter a moment later."""
    server = lora_server
    canary = server.text()
    long: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}
    assert load(server, "good", "good").status_code == 200
    assert load(server, "other", "other").status_code == 200
    answers = {
        name: [server.text(model=name, prompt=f"tell {i}", **long) for i in range(2)]
        for name in ("tiny", "good", "other")
    }
    assert len({text for texts in answers.values() for text in texts}) == 6
    assert unload(server, "good").status_code == 200
    assert unload(server, "other").status_code == 200

    def ask(number: int) -> None:
        name = ("tiny", "swap")[number % 3 > 0]
        response = server.complete(model=name, prompt=f"tell {number % 2}", **long)
        if response.status_code == 404:
            assert name == "swap"
            assert response.json()["error"]["code"] == "model_not_found"
            return
        assert response.status_code == 200, response.text
        text = response.json()["choices"][0]["text"]
        may = ("tiny",) if name == "tiny" else ("good", "other")
        assert text in [answers[each][number % 2] for each in may]
        served.append(name)

    served: list[str] = []
    shutil.copytree(folder / "good", folder / "moved")
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, number) for number in range(60)]
        for turn in range(12):
            assert load(server, "swap", ("moved", "other")[turn % 2]).status_code == 200
            if turn % 3 == 0:
                assert load(server, "swap", "other", load_inplace=True).status_code == 200
            assert unload(server, "swap").status_code == 200
        for future in asked:
            future.result()
    assert {"tiny"} <= set(served)
    assert server.complete(model="swap").status_code == 404
    assert_unharmed(server, canary)


def test_row_53_one_in_use_is_freed_after_its_last_request(lora_server: Server) -> None:
    server = lora_server
    canary = server.text()
    assert load(server, "brief", "other").status_code == 200
    fields: dict[str, Any] = {"model": "brief", "max_tokens": 200, "ignore_eos": True}
    whole = server.text(**fields)
    body = {"prompt": "once upon", "temperature": 0, "stream": True, **fields}
    with server.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        pieces = [next(lines)]
        assert unload(server, "brief").status_code == 200
        assert server.complete(model="brief").status_code == 404
        pieces += lines
    events = [json.loads(piece[6:]) for piece in pieces if piece.startswith("data: {")]
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == whole
    assert_unharmed(server, canary)


def test_models_lists_adapters(lora_server: Server) -> None:
    cards = {card["id"]: card for card in lora_server.http.get("/v1/models").json()["data"]}
    assert cards["first"]["parent"] == "tiny"
    assert cards["tiny"]["parent"] is None
    assert lora_server.http.get("/v1/models/first").json()["id"] == "first"
    chat = {"model": "first", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert lora_server.http.post("/v1/chat/completions", json=chat).json()["model"] == "first"


def test_row_63_fields_of_calls_about_adapters(lora_server: Server) -> None:
    canary, known = lora_server.text(), names(lora_server)
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        for name in ("lora_name", "lora_path", "load_inplace"):
            for whole in extremes({"lora_name": "first", "lora_path": "nowhere"}, name):
                if path.endswith("unload_lora_adapter") and name != "lora_name":
                    continue  # it unloads the adapter
                headers = {"content-type": "application/json"}
                response = lora_server.http.post(path, content=whole.encode(), headers=headers)
                assert response.status_code in (400, 404), (path, whole, response.text)
                assert_no_secret(response.text)
    assert names(lora_server) == known
    assert_unharmed(lora_server, canary)
