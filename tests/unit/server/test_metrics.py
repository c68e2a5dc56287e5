"""vLLM's metric names, and numbers that add up."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from quire.core.messages import HostTierStats, SchedulerStats
from quire.metrics.stats import EngineStats, LoraUse
from quire.metrics.times import PARTS
from quire.server.monitoring.metrics import Metrics
from tests.unit.server.fake_engine import Running, running

NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:iteration_tokens_total",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "quire:kv_blocks",
    "quire:time_seconds",
    "quire:event_loop_lag_seconds",
}


async def samples(app: Running) -> dict[str, float]:
    """Metric values by name and distinguishing labels."""
    response = await app.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    result = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "echo"
            assert labels.pop("engine") == "0"
            result[" ".join([sample.name, *labels.values()])] = sample.value
    return result


async def test_names(app: Running) -> None:
    text = (await app.http.get("/metrics")).text
    assert {f.name for f in text_string_to_metric_families(text)} >= NAMES


def test_blocks_outside_of_the_kv_cache_are_counted_where_there_are_any() -> None:
    stats = EngineStats()
    metrics = Metrics(stats, "echo")
    assert b"swapped" not in metrics.render()
    host = HostTierStats(1, 5, 20, 7, 2, 30, 31, 32, 33, 34, 35)
    stats.scheduler = SchedulerStats(0, 0, 0, 1, 0, 0, 0, 0, 0, host)
    families = list(text_string_to_metric_families(metrics.render().decode()))
    values = {family.name: family.samples[0].value for family in families if family.samples}
    assert values["vllm:num_requests_swapped"] == 1
    assert values["vllm:cpu_cache_usage_perc"] == 0.25
    assert values["quire:kv_blocks_saved"] == 7
    assert values["quire:swap_preemptions"] == 2
    assert values["quire:kv_blocks_swapped_out"] == 30
    assert values["quire:kv_load_failures"] == 34
    assert values["quire:kv_save_failures"] == 35


def test_adapters_are_told_as_vllm_does() -> None:
    stats = EngineStats()
    metrics = Metrics(stats, "echo")
    assert b"lora" not in metrics.render()
    stats.max_loras = 2
    stats.adapters = lambda: LoraUse({"b", "a"}, {"c"})
    families = text_string_to_metric_families(metrics.render().decode())
    [sample] = next(f for f in families if f.name == "vllm:lora_requests_info").samples
    assert sample.labels == {
        "max_lora": "2",
        "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "c",
    }
    assert sample.value > 1e9


async def test_counts(app: Running) -> None:
    before = await samples(app)
    spent = {name for name in before if name.startswith("quire:time_seconds")}
    assert before.pop("quire:kv_blocks free") == app.core.config.num_blocks
    size, count = app.core.config.block_size, app.core.config.num_blocks
    assert before.pop(f"vllm:cache_config_info {size} {count}") == 1
    assert {before[name] for name in before.keys() - spent} == {0.0}
    await app.complete(prompt="abc", n=2)
    await app.complete(prompt="w", max_tokens=10)
    found = await samples(app)
    assert found["vllm:prompt_tokens_total"] == 4
    assert found["vllm:generation_tokens_total"] == 2 * 3 + 4
    assert found["vllm:request_success_total length"] == 2
    assert found["vllm:request_success_total stop"] == 1
    assert found["vllm:request_success_total abort"] == 0
    assert found["vllm:num_requests_running"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == 2
    assert found["vllm:e2e_request_latency_seconds_count"] == 2
    assert found["vllm:request_prompt_tokens_sum"] == 4
    assert found["vllm:request_generation_tokens_bucket 2.0"] == 0
    assert found["vllm:request_generation_tokens_bucket 5.0"] == 1
    assert found["vllm:request_generation_tokens_bucket 10.0"] == 2
    assert found["vllm:request_generation_tokens_bucket +Inf"] == 2


async def test_every_part_of_the_time_is_counted() -> None:
    async with running(seconds=0.001) as app:
        await app.chat(max_tokens=20)
        first = await samples(app)
        await asyncio.gather(*(app.chat(stream=True, max_tokens=20) for _ in range(4)))
        found = await samples(app)
        name = "quire:time_seconds_total"
        spent = {part: found[f"{name} {part}"] - first[f"{name} {part}"] for part in PARTS}
        assert min(spent.values()) >= 0.0
        for part in ("http", "tokenize", "schedule", "model", "update", "detokenize", "send"):
            assert spent[part] > 0.0, part
