"""The engine's counters as Prometheus' metrics, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from quire.core.messages import HostTierStats
from quire.metrics.histogram import Histogram
from quire.metrics.stats import EngineStats, LoraUse
from quire.metrics.times import PARTS

_REASONS = ("stop", "length", "abort", "error")


class MetricsCollector(Collector):
    """Reads `EngineStats` when it is scraped; costs nothing between scrapes."""

    def __init__(self, stats: EngineStats, model_name: str) -> None:
        self._stats = stats
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        if self._stats.scheduler and (host := self._stats.scheduler.host_tier):
            yield from self._host_tier(host)
        if self._stats.adapters is not None:
            yield _lora_requests(self._stats.adapters(), self._stats.max_loras or 0)
        yield self._seconds()
        for name, text, histogram in _histograms(self._stats):
            yield self._histogram(f"vllm:{name}", text, histogram)
        yield self._histogram(
            "quire:event_loop_lag_seconds",
            "How late the event loop of the API is, sampled while requests are in progress.",
            self._stats.event_loop_lag,
        )

    def _gauges(self) -> Iterator[Metric]:
        s = self._stats.scheduler
        gauges = (
            ("num_requests_running", "Sequences in the batch.", s.num_running if s else 0),
            ("num_requests_waiting", "Sequences in the queue.", s.num_waiting if s else 0),
            (
                "kv_cache_usage_perc",
                "Share of the KV-cache blocks in use; 1 is all.",
                self._stats.kv_cache_usage,
            ),
        )
        for name, text, value in gauges:
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        blocks = GaugeMetricFamily(
            "quire:kv_blocks",
            "KV-cache blocks by state; cached blocks are unused and hold a prefix.",
            labels=[*self._labels, "state"],
        )
        used, cached = (s.kv_blocks_used, s.kv_blocks_cached) if s else (0, 0)
        free = (s.kv_blocks_total if s else 0) - used - cached
        for state, count in (("used", used), ("cached", cached), ("free", free)):
            blocks.add_metric([*self._labels.values(), state], count)
        yield blocks
        family = GaugeMetricFamily(
            "quire:last_step_seconds",
            "When the newest step ended, on the machine's monotonic clock.",
            labels=list(self._labels),
        )
        family.add_metric(list(self._labels.values()), self._stats.last_step)
        yield family

    def _counters(self) -> Iterator[Metric]:
        s = self._stats.scheduler
        counters = (
            ("num_preemptions", "Preemptions.", s.num_preemptions if s else 0),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                s.prefix_cache_queries if s else 0,
            ),
            (
                "prefix_cache_hits",
                "Prompt tokens found in the prefix cache.",
                s.prefix_cache_hits if s else 0,
            ),
            ("prompt_tokens", "Prompt tokens of the requests begun.", self._stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._stats.generation_tokens),
        )
        for name, text, value in counters:
            family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        own = (
            ("requests_rejected", "Requests refused: the queue was full.", self._stats.rejected),
            (
                "repeated_prompt_tokens",
                "Prompt tokens that an earlier prompt had begun with, cached or not.",
                self._stats.repeated_tokens,
            ),
            (
                "engine_restarts",
                "Engine cores that took the place of one that was lost.",
                self._stats.restarts,
            ),
            (
                "requests_retried",
                "Requests that began again because the engine core was lost.",
                self._stats.retried,
            ),
            (
                "slow_client_outputs",
                "Outputs that waited for their client to read.",
                self._stats.slow_outputs,
            ),
        )
        for name, text, count in own:
            counter = CounterMetricFamily(f"quire:{name}", text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), count)
            yield counter
        success = CounterMetricFamily(
            "vllm:request_success",
            "Sequences finished, by the reason.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason in _REASONS:
            success.add_metric([*self._labels.values(), reason], self._stats.finished[reason])
        yield success
        ignored = CounterMetricFamily(
            "quire:ignored_fields",
            "Fields of requests that had no effect, by endpoint.",
            labels=[*self._labels, "endpoint"],
        )
        for endpoint, count in self._stats.ignored_fields.items():
            ignored.add_metric([*self._labels.values(), endpoint], count)
        yield ignored

    def _host_tier(self, host: HostTierStats) -> Iterator[Metric]:
        """Yield metrics of KV blocks outside of the KV cache."""
        for name, text, value in _host_gauges(host):
            gauge = GaugeMetricFamily(name, text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        for name, text, count in _host_counters(host):
            counter = CounterMetricFamily(f"quire:{name}", text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), count)
            yield counter

    def _seconds(self) -> Metric:
        family = CounterMetricFamily(
            "quire:time_seconds",
            f"Where the time went. {'; '.join(f'{k}: {v}' for k, v in PARTS.items())}.",
            labels=[*self._labels, "part"],
        )
        for part, seconds in self._stats.seconds().items():
            family.add_metric([*self._labels.values(), part], seconds)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(
            list(self._labels.values()),
            buckets=_cumulative(histogram.bounds, histogram.counts),
            sum_value=histogram.total,
        )
        return family


def _lora_requests(use: LoraUse, max_loras: int) -> Metric:
    """Return vLLM's metric: labels hold the state, and the value is its time."""
    family = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters in the batch and in the queue, by name, with commas between; the time.",
        labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
    )
    named = (",".join(sorted(names)) for names in (use.waiting, use.running))
    family.add_metric([str(max_loras), *named], time.time())
    return family


def _host_gauges(host: HostTierStats) -> tuple[tuple[str, str, float], ...]:
    share = host.slots_used / host.slots_total
    swapped = host.num_requests_swapped
    return (
        ("vllm:num_requests_swapped", "Preempted sequences whose KV blocks are kept.", swapped),
        ("vllm:cpu_cache_usage_perc", "Share of the host's KV blocks in use; 1 is all.", share),
        ("quire:kv_files", "KV blocks kept in files.", host.files_used),
    )


def _host_counters(host: HostTierStats) -> tuple[tuple[str, str, int], ...]:
    return (
        ("swap_preemptions", "Preemptions whose KV blocks were kept.", host.swap_preemptions),
        ("kv_blocks_swapped_out", "KV blocks of preempted sequences kept.", host.swapped_out),
        ("kv_blocks_swapped_in", "KV blocks of preempted sequences copied back.", host.swapped_in),
        ("kv_blocks_offloaded", "KV blocks kept that left the prefix cache.", host.stored),
        ("kv_blocks_reloaded", "KV blocks of prefixes copied back.", host.loaded),
        ("kv_load_failures", "KV blocks that were damaged, and computed again.", host.failed),
    )


def _histograms(s: EngineStats) -> tuple[tuple[str, str, Histogram], ...]:
    tokens = s.inter_token_latency
    return (
        ("time_to_first_token_seconds", "From arrival to the first token.", s.time_to_first_token),
        ("inter_token_latency_seconds", "Between tokens of a sequence.", tokens),
        # The name that vLLM gave the same thing before, for dashboards that still read it.
        ("time_per_output_token_seconds", "As inter_token_latency_seconds.", tokens),
        (
            "request_time_per_output_token_seconds",
            "Mean time of a sequence's tokens but the first.",
            s.time_per_output_token,
        ),
        ("e2e_request_latency_seconds", "From arrival to the last token.", s.e2e_request_latency),
        ("request_queue_time_seconds", "From arrival to the batch.", s.request_queue_time),
        (
            "request_prefill_time_seconds",
            "From the batch to the first token.",
            s.request_prefill_time,
        ),
        (
            "request_decode_time_seconds",
            "From the first token to the last.",
            s.request_decode_time,
        ),
        (
            "request_inference_time_seconds",
            "From the batch to the last token.",
            s.request_inference_time,
        ),
        ("iteration_tokens_total", "Tokens computed in a step.", s.iteration_tokens),
        ("request_prompt_tokens", "Prompt tokens of a request.", s.request_prompt_tokens),
        (
            "request_generation_tokens",
            "Tokens generated for a request.",
            s.request_generation_tokens,
        ),
        ("request_params_n", "The request's n.", s.request_params_n),
        (
            "request_params_max_tokens",
            "The request's max_tokens, where set.",
            s.request_params_max_tokens,
        ),
    )


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: each counts all observations up to its bound."""
    total = 0
    result: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        result.append((bound, float(total)))
    return result
