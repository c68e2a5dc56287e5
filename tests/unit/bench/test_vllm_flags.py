"""Command lines of `vllm bench serve` work with `quire bench serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.bench.serving.load import make_load
from quire.bench.serving.serve import run
from quire.bench.serving.vllm_flags import applied
from quire.core.errors import ConfigError, QuireError
from tests.unit.bench.fake_server import serving
from tests.unit.bench.parsed import bench_args

SMALL = ("--num-prompts", "4", "--random-output-len", "3", "--random-input-len", "5")


def body(*argv: str) -> dict[str, Any]:
    """Return the body of the first request that these flags make."""
    args = applied(bench_args("serve", *SMALL, *argv))
    return make_load(args, "tiny", 0).requests[0].body


def test_sampling_flags_are_fields_of_each_request() -> None:
    sent = body("--temperature", "0.5", "--top-p", "0.9", "--top-k", "5", "--logprobs", "2")
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "logprobs")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "logprobs": 2
    }  # fmt: skip
    assert body()["temperature"] == 0.0
    assert body("--extra-body", '{"min_p": 0.1, "temperature": 1}')["temperature"] == 1
    chat = body("--backend", "openai-chat", "--logprobs", "2")
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)
    assert "messages" in chat


@pytest.mark.parametrize("text", ["[]", "{", '{"stream": false}', '{"model": "m"}'])
def test_an_extra_body_that_would_break_the_measurement_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        bench_args("serve", "--extra-body", text)


def test_names_of_the_server() -> None:
    def url(*argv: str) -> Any:
        return applied(bench_args("serve", *argv)).base_url

    assert url("--host", "box", "--port", "81") == "http://box:81"
    assert url("--host", "::1") == "http://[::1]:8000"
    assert url("--port", "81") == "http://127.0.0.1:81"
    assert url() is None
    with pytest.raises(ConfigError, match="not both"):
        url("--base-url", "http://box", "--port", "81")
    with pytest.raises(ConfigError, match="asks for completions"):
        url("--backend", "vllm", "--endpoint", "/v1/chat/completions")


def test_vllms_command_line_writes_vllms_file(tmp_path: Path) -> None:
    words = [
        *("--backend", "vllm", "--model", "path/of/weights", "--served-model-name", "tiny"),
        *("--endpoint", "/v1/completions", "--dataset-name", "random", "--max-concurrency", "2"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
        *("--request-rate", "inf", "--seed", "1", "--num-warmups", "0", "--disable-tqdm"),
        *("--tokenizer", "path/of/weights", "--trust-remote-code", "--header", "X-Team=a"),
        *("--save-detailed", "--append-result", "--result-filename", "r.json"),
        *("--result-dir", str(tmp_path), "--label", "base", "--metadata", "tp=1"),
    ]
    with serving() as server:
        for _ in range(2):
            row = run(bench_args("serve", *SMALL, *words, "--base-url", server.url))
    assert isinstance(row, dict)
    assert (row["label"], row["tp"], row["model"]) == ("base", "1", "tiny")
    lines = (tmp_path / "r.json").read_text().splitlines()
    assert len(lines) == 2
    found = json.loads(lines[1])
    assert (found["label"], found["backend"], found["model_id"]) == ("base", "vllm", "tiny")
    assert (found["completed"], found["failed"], found["max_concurrency"]) == (4, 0, 2)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (4, 12)
    assert found["request_throughput"] == pytest.approx(4 / found["duration"])
    assert found["output_throughput"] == pytest.approx(12 / found["duration"])
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < found[f"median_{name}_ms"] == found[f"p50_{name}_ms"] <= found[f"p99_{name}_ms"]
        assert found[f"mean_{name}_ms"] > 0 <= found[f"std_{name}_ms"]
    assert [len(found[name]) for name in ("ttfts", "itls", "input_lens", "errors")] == [4] * 4
    assert len(server.bodies) == 2 * 3 * 4  # no warm-up


def test_profiling_ends_also_if_the_load_fails() -> None:
    with serving() as server:
        run(bench_args("serve", *SMALL, "--profile", "--base-url", server.url))
        assert server.profiles == ["/start_profile", "/stop_profile"]
    with serving(lambda body: ["[DONE]"]) as server:
        words = ("--profile", "--num-warmups", "0", "--base-url", server.url)
        with pytest.raises(QuireError, match="requests failed"):
            run(bench_args("serve", *SMALL, *words))
        assert server.profiles == ["/start_profile", "/stop_profile"]
