"""An engine that sleeps gives its memory back, and answers as before once it is awake."""

from __future__ import annotations

import os
from pathlib import Path

import openai
import pytest

from quire import LLM, SamplingParams
from tests.e2e.serving import Server, serving

FEW_LAYERS = {"num_hidden_layers": 2}
PROMPT = [7] * 40


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_sleep_frees_weights_and_kv_cache() -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=8, ignore_eos=True, logprobs=2)
    with LLM(
        "opt-125m", load_format="dummy", hf_overrides=FEW_LAYERS, max_model_len=64, max_num_seqs=2
    ) as llm:
        before = llm.generate([PROMPT], params)[0].outputs[0]
        assert llm.generate([PROMPT], params)[0].num_cached_tokens == 32
        weights = llm.facts["weight_bytes"]
        assert weights > 80 * 2**20
        awake = resident_bytes()
        llm.sleep()
        asleep = resident_bytes()
        assert awake - asleep > 0.9 * weights
        llm.wake_up()
        output = llm.generate([PROMPT], params)[0]
        assert output.num_cached_tokens == 0
        after = output.outputs[0]
        assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)


def ask(server: Server) -> str:
    with server.openai_client() as client:
        prompt = "once upon a time there was a dog " * 4
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=8, seed=1)
        return answer.choices[0].text


def test_a_server_sleeps(tiny_model: Path) -> None:
    with serving(tiny_model, "--num-gpu-blocks-override", "256", "--enable-sleep-mode") as server:
        before = ask(server)
        assert ask(server) == before
        assert server.metric("prefix_cache_hits_total") > 0
        post, get = server.http.post, server.http.get
        assert get("/is_sleeping").json() == {"is_sleeping": False}
        assert "1 or 2" in post("/sleep?level=0").json()["error"]["message"]
        assert post("/sleep?level=1").status_code == 200
        assert get("/is_sleeping").json() == {"is_sleeping": True}
        with pytest.raises(openai.InternalServerError, match="POST /wake_up") as caught:
            ask(server)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_sleeping")
        found = {path: get(path).status_code for path in ("/health", "/ready", "/metrics")}
        assert found == {"/health": 200, "/ready": 503, "/metrics": 200}
        assert post("/wake_up").status_code == 200
        assert ask(server) == before
        assert server.metric("prefix_cache_hits_total") == 0
        assert post("/sleep?level=2").status_code == 200
        config, gone = tiny_model / "config.json", tiny_model / "gone"
        config.rename(gone)
        refused = post("/wake_up")
        gone.rename(config)
        assert refused.status_code == 503
        assert str(tiny_model) not in refused.text
        assert get("/is_sleeping").json() == {"is_sleeping": True}
        assert post("/wake_up").status_code == 200
        assert ask(server) == before
        assert server.stop() == 0


def test_a_server_sleeps_only_where_that_is_allowed(server: Server) -> None:
    answer = server.http.post("/sleep")
    assert answer.status_code == 404
    assert "--enable-sleep-mode" in answer.json()["error"]["message"]
