"""`quire serve --data-parallel-size 2`: the answers of one engine, and every endpoint."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire import LLM, SamplingParams
from quire.core.kv_sharing import KVEventsConfig
from quire.frontend.client.core_client import ProcessClient
from quire.system.hardware import detect
from tests.e2e.serving import Server, serving, until
from tests.unit.engine.kv_consumer import Consumer

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="each replica needs a core")

BLOCKS = 256
PROMPTS = ["once upon a time", "the cat", "a dog said", "one morning"]
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.9},  # the front end draws the seeds, in order; other tests ask greedily
]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> KVEventsConfig:
    folder = tmp_path_factory.mktemp("kv")
    return KVEventsConfig(f"ipc://{folder}/events", f"ipc://{folder}/replay")


@pytest.fixture(scope="module")
def replicas(tiny_model: Path, events: KVEventsConfig) -> Iterator[Server]:
    flags = ("--data-parallel-size", "2", "--num-gpu-blocks-override", str(BLOCKS))
    wanted = {
        "enable_kv_cache_events": True,
        "endpoint": events.endpoint,
        "replay_endpoint": events.replay_endpoint,
    }
    with serving(tiny_model, *flags, "--kv-events-config", json.dumps(wanted)) as running:
        yield running


def generated(replicas: Server) -> dict[str, float]:
    """Generated tokens of each replica."""
    return {
        sample.labels["engine"]: sample.value
        for family in text_string_to_metric_families(replicas.http.get("/metrics").text)
        for sample in family.samples
        if sample.name == "vllm:generation_tokens_total"
    }


def test_answers_are_those_of_one_engine(replicas: Server, tiny_model: Path) -> None:
    params = [{**request, "max_tokens": 24} for request in REQUESTS]
    with LLM(str(tiny_model), num_gpu_blocks_override=BLOCKS) as llm:
        expected = [
            list(llm.generate(prompt, SamplingParams(**each))[0].outputs[0].token_ids)
            for prompt in PROMPTS
            for each in params
        ]
    found, before = [], generated(replicas)
    for number, prompt in enumerate(PROMPTS):
        headers = {"X-data-parallel-rank": str(number % 2)}
        for each in params:
            body = {**each, "prompt": prompt, "return_token_ids": True}
            answer = replicas.http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["choices"][0]["token_ids"])
    assert found == expected
    counted = {rank: count - before[rank] for rank, count in generated(replicas).items()}
    lengths = [len(tokens) for tokens in expected]
    first = lengths[0:3] + lengths[6:9]
    assert counted == {"0": sum(first), "1": sum(lengths) - sum(first)}


def test_each_metric_names_its_replica(replicas: Server) -> None:
    families = text_string_to_metric_families(replicas.http.get("/metrics").text)
    others = ("quire:device_", "vllm:lora_requests_info")
    found = [s for f in families for s in f.samples if not s.name.startswith(others)]
    assert {sample.labels.get("engine") for sample in found} == {"0", "1"}


def test_offline(tiny_model: Path) -> None:
    """Also after a replica was lost."""
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = PROMPTS * 4
    with LLM(str(tiny_model), num_gpu_blocks_override=BLOCKS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy)]
    with LLM(str(tiny_model), num_gpu_blocks_override=BLOCKS, data_parallel_size=2) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy)]
        assert found == expected
        assert all(llm.stats.of(i).generation_tokens for i in (0, 1))
        client = llm._engine._fleet.replicas[0].client
        assert isinstance(client, ProcessClient)
        os.kill(client.pid, signal.SIGKILL)
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, greedy)]
        assert found == expected


def test_an_unknown_rank_is_a_400(replicas: Server) -> None:
    for rank, why in (("2", "replicas are 0 to 1"), ("x", "whole number"), ("-1", "whole number")):
        headers = {"X-data-parallel-rank": rank}
        answer = replicas.http.post(
            "/v1/completions", json={"prompt": "a", "temperature": 0}, headers=headers
        )
        assert answer.status_code == 400
        assert why in answer.json()["error"]["message"]


def test_what_reads_the_engine_reads_all_replicas(replicas: Server) -> None:
    assert replicas.http.get("/health").status_code == 200
    assert replicas.http.get("/load").status_code == 200
    assert replicas.http.get("/explain", params={"window": 0.1}).status_code == 200
    with replicas.http.stream("GET", "/dashboard/stream") as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    snapshot = json.loads(line.removeprefix("data: "))
    assert snapshot["kv_map"]["num_blocks"] == snapshot["stats"]["kv_blocks_total"] == 2 * BLOCKS
    replicas.wait_until_idle()


def test_each_replica_publishes_its_blocks(replicas: Server, events: KVEventsConfig) -> None:
    for rank in (0, 1):
        consumer = Consumer(replace(events, rank=rank))
        headers = {"X-data-parallel-rank": str(rank)}
        prompt = [rank + 5] * 70
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        assert replicas.http.post("/v1/completions", json=body, headers=headers).is_success
        until(lambda c=consumer: c.catch_up() and c.blocks)  # type: ignore[misc]
        assert consumer.ranks == {rank}
        stored = [tokens for _, tokens in consumer.blocks.values()]
        assert stored.count(prompt[:16]) == 4
        assert replicas.http.post("/reset_prefix_cache").is_success
        until(lambda c=consumer: c.catch_up() and not c.blocks)  # type: ignore[misc]
        consumer.close()
