"""Engines on the same work: who is found, who is left out, and what a ratio means."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.bench import compare
from quire.bench.compare import PEERS, Package, interpreters, print_result, ratio, run
from quire.bench.contest import METRICS
from quire.bench.flags import PEER_NAMES, TASKS
from quire.bench.peers.driver import Options
from quire.core.errors import ConfigError, QuireError
from tests.unit.bench.parsed import bench_args

MODEL = Path(quire.__file__).parent / "assets" / "story"
NOT_INSTALLED = Package("no_such_module", "x", "pip install x")


def flags(*argv: str) -> argparse.Namespace:
    return bench_args("compare", *argv)


SMALL = ("--model", str(MODEL), "--input-len", "8", "--output-len", "4", "--num-prompts", "2")


def test_help_names_what_there_is() -> None:
    assert tuple(PEERS) == PEER_NAMES
    assert tuple(METRICS) == TASKS
    folder = Path(compare.__file__).parent / "peers"
    assert all((folder / f"{package.driver}.py").is_file() for package in PEERS.values())


def test_peers_are_given_or_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = {"a": Package("json", "x", ""), "b": NOT_INSTALLED, "c": NOT_INSTALLED}
    packages["d"] = Package("json", "x", "", on_request=True)
    monkeypatch.setattr(compare, "PEERS", packages)
    assert interpreters([f"b={sys.executable}"]) == {"b": sys.executable, "a": sys.executable}
    told = capsys.readouterr().err
    assert "c is not installed" in told
    assert "pip install x; then use --peer c=PYTHON" in told
    assert interpreters([f"b={sys.executable}"], only_given=True) == {"b": sys.executable}
    assert "d" in interpreters([f"d={sys.executable}"])
    for wrong in ("b", "b=missing", f"z={sys.executable}"):
        with pytest.raises(ConfigError, match="NAME=PYTHON"):
            interpreters([wrong])
    monkeypatch.setattr(compare, "PEERS", {"b": NOT_INSTALLED})
    with pytest.raises(ConfigError, match="No peer"):
        interpreters([])


def test_a_ratio_above_one_means_that_quire_is_faster() -> None:
    samples = {
        "quire": {"decode": [20.0, 30.0, 40.0], "startup": [1.0]},
        "peer": {"decode": [10.0, 10.0, 80.0], "startup": [3.0]},
    }
    row = ratio("decode_tok_s", samples, "decode", "peer")
    assert (row["median"], row["lowest"], row["highest"], row["spread"]) == (10.0, 10.0, 80.0, 7.0)
    assert (row["quire_is"], row["quire_is_low"], row["quire_is_high"]) == (2.0, 0.5, 3.0)
    assert ratio("decode_tok_s", samples, "decode", "quire")["quire_is"] is None
    assert ratio("start_to_first_token_s", samples, "startup", "peer")["quire_is"] == 3.0


def test_engines_take_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quire beside itself, under another name, and beside a peer that fails."""
    packages = {"twin": Package("json", "quire_llm", ""), "bad": Package("json", "none", "")}
    monkeypatch.setattr(compare, "PEERS", packages)
    rows = run(flags(*SMALL, "--repetitions", "1"))
    assert [row["task"] for row in rows] == [task for task in METRICS for _ in range(2)]
    assert {row["engine"] for row in rows} == {f"quire {quire.__version__}"}
    assert [row["quire_is"] is None for row in rows] == [True, False] * 4
    assert all(row["median"] > 0 and row["model"] == "story" for row in rows)
    assert "bad failed and is left out: " in capsys.readouterr().err
    out = io.StringIO()
    print_result(rows, out)
    titles = [line for line in out.getvalue().splitlines() if line.startswith("bench compare")]
    assert titles == [f"bench compare: {task} (2 rows)" for task in METRICS]


def test_plain_torch_layers_keep_what_they_have_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from quire.bench.peers import torch_layers

    shape = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 24, "vocab_size": 50}
    config = {"model_type": "gpt2", "layer_norm_epsilon": 1e-5, **shape}
    monkeypatch.setattr(torch_layers, "config_of", lambda model: config)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    peer = torch_layers.TorchLayers(Options("gpt2", "float32", None, 1, 0, 24, 2, ""))
    token_ids = torch.randint(50, (2, 9))
    whole = peer.logits(token_ids, 0)
    peer.logits(token_ids[:, :8], 0)
    torch.testing.assert_close(peer.logits(token_ids[:, 8:], 8), whole)
    [first, _] = peer.generate(token_ids.tolist(), 3)
    assert first.arrival_time < first.first_token_time < first.last_token_time


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--model", "opt-125m", "--tasks", "startup"), "opt-125m has none"),
        (("--model", "nowhere"), "neither a preset nor"),
    ],
)
def test_models_that_cannot_be_compared(argv: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        run(flags("--peer", f"vllm={sys.executable}", "--peers-only", *argv))


def test_a_failure_of_quire_is_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PEERS", {"twin": Package("json", "none", "")})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(QuireError, match="Quire failed"):
        run(flags(*SMALL, "--repetitions", "1", "--tasks", "decode"))
