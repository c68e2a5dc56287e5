"""The engine's counters as Prometheus' metrics, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

from quire.core.messages import HostTierStats, SpecDecodingStats, StageStats
from quire.metrics.families import Family
from quire.metrics.histogram import Histogram
from quire.metrics.stats import LATENCIES, EngineStats, LoraUse
from quire.metrics.times import PARTS

Kind = Literal["counter", "gauge"]

_REASONS = ("stop", "length", "abort", "error")


class MetricsCollector:
    """Reads `EngineStats` at each scrape; costs nothing in between.

    The label `engine` is the replica's number. What belongs to the server has that of the first.
    """

    def __init__(self, stats: EngineStats, model_name: str) -> None:
        self._replicas = [
            _Reader(each, {"model_name": model_name, "engine": str(number)})
            for number, each in enumerate(stats.replicas or [stats], stats.first_replica)
        ]
        self._server = _Reader(
            stats, {"model_name": model_name, "engine": str(stats.first_replica)}
        )

    def collect(self) -> Iterator[Family]:
        """Yield all metrics, each with the samples of all replicas."""
        own = self._replicas[0].seconds().keys()
        readers = [reader.of_replica() for reader in self._replicas]
        found: dict[str, Family] = {}
        for family in chain(*readers, self._server.of_server(besides=own)):
            if family.name in found:
                found[family.name].samples += family.samples
            else:
                found[family.name] = family
        yield from found.values()


class _Reader:
    """Reads the counters of one replica or of the server."""

    def __init__(self, stats: EngineStats, labels: Mapping[str, str]) -> None:
        self._stats = stats
        self._labels = labels

    def seconds(self) -> dict[str, float]:
        return self._stats.seconds()

    def of_replica(self) -> Iterator[Family]:
        """Yield what each replica has."""
        yield from self._gauges()
        counters = _counters(self._stats)
        yield from (self._one("counter", *counter) for counter in counters)
        yield self._by(
            "counter",
            "vllm:request_success",
            "Finished sequences by reason.",
            "finished_reason",
            {reason: self._stats.finished[reason] for reason in _REASONS},
        )
        if self._stats.scheduler and (host := self._stats.scheduler.host_tier):
            yield from self._host_tier(host)
        if self._stats.scheduler and (drafts := self._stats.scheduler.spec_decoding):
            yield from self._speculation(drafts)
        if self._stats.scheduler and (encoded := self._stats.scheduler.encoded_tokens):
            yield from self._images(encoded)
        if self._stats.scheduler and (stages := self._stats.scheduler.stages):
            yield from self._stages(stages)
        yield self._seconds(self._stats.seconds())
        for name, text, histogram in _histograms(self._stats):
            yield self._histogram(f"vllm:{name}", text, histogram)

    def of_server(self, besides: Collection[str]) -> Iterator[Family]:
        """Yield what the server has once.

        Args:
            besides: parts of the time that replicas have.
        """
        for name, (field, text) in _SERVER_COUNTERS.items():
            yield self._one("counter", f"quire:{name}", text, getattr(self._stats, field))
        yield self._by(
            "counter",
            "quire:ignored_fields",
            "Fields of requests that had no effect, by endpoint.",
            "endpoint",
            self._stats.ignored_fields,
        )
        if self._stats.adapters is not None:
            yield _lora_requests(self._stats.adapters(), self._stats.max_loras or 0)
        seconds = self._stats.seconds()
        if left := {name: seconds[name] for name in seconds.keys() - besides}:
            yield self._seconds(left)
        yield self._histogram(
            "quire:event_loop_lag_seconds",
            "How late the event loop of the API is, sampled while requests are in progress.",
            self._stats.event_loop_lag,
        )

    def _gauges(self) -> Iterator[Family]:
        s = self._stats.scheduler
        gauges = (
            ("vllm:num_requests_running", "Sequences in the batch.", s.num_running if s else 0),
            ("vllm:num_requests_waiting", "Sequences in the queue.", s.num_waiting if s else 0),
            (
                "vllm:kv_cache_usage_perc",
                "Share of the KV-cache blocks in use; 1 is all.",
                self._stats.kv_cache_usage,
            ),
            (
                "quire:last_step_seconds",
                "When the newest step ended, on the machine's monotonic clock.",
                self._stats.last_step,
            ),
        )
        yield from (self._one("gauge", *gauge) for gauge in gauges)
        used, cached = (s.kv_blocks_used, s.kv_blocks_cached) if s else (0, 0)
        free = (s.kv_blocks_total if s else 0) - used - cached
        yield self._by(
            "gauge",
            "quire:kv_blocks",
            "KV-cache blocks by state; cached blocks are unused and hold a prefix.",
            "state",
            {"used": used, "cached": cached, "free": free},
        )

    def _host_tier(self, host: HostTierStats) -> Iterator[Family]:
        """Yield metrics of KV blocks outside of the KV cache."""
        text = "Preempted sequences with stored KV blocks."
        yield self._one("gauge", "vllm:num_requests_swapped", text, host.num_requests_swapped)
        share = host.slots_used / max(1, host.slots_total)
        text = "Share of the host's KV blocks in use; 1 is all."
        yield self._one("gauge", "vllm:cpu_cache_usage_perc", text, share)
        for name, (field, text) in _HOST_COUNTERS.items():
            yield self._one("counter", f"quire:{name}", text, getattr(host, field))

    def _speculation(self, drafts: SpecDecodingStats) -> Iterator[Family]:
        counters = (
            ("num_drafts", "Passes of a sequence with drafts.", drafts.num_drafts),
            ("num_draft_tokens", "Drafted tokens.", drafts.num_draft_tokens),
            ("num_accepted_tokens", "Accepted drafts.", drafts.num_accepted_tokens),
        )
        for name, text, value in counters:
            yield self._one("counter", f"vllm:spec_decode_{name}", text, value)
        yield self._by(
            "counter",
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted drafts by position; 0 is the first.",
            "position",
            {str(i): count for i, count in enumerate(drafts.num_accepted_tokens_per_pos)},
        )

    def _stages(self, stages: Sequence[StageStats]) -> Iterator[Family]:
        texts = {
            "stage_seconds": "Seconds of a pipeline stage's steps, without waiting for rows.",
            "hop_seconds": "Seconds that rows took from a stage to the next one's machine and a "
            "receipt took back.",
            "hop_bytes": "Bytes of these rows.",
            "hops": "Steps with such rows.",
        }
        values = [(s.busy, s.hop_seconds, s.hop_bytes, s.hops) for s in stages]
        for (name, text), column in zip(texts.items(), zip(*values, strict=True), strict=True):
            by_stage = {str(number): value for number, value in enumerate(column)}
            yield self._by("counter", f"quire:{name}", text, "stage", by_stage)

    def _images(self, encoded_tokens: int) -> Iterator[Family]:
        text = "Prompt tokens whose images were read; an image in the encoder cache is not."
        yield self._one("counter", "quire:encoded_image_tokens", text, encoded_tokens)

    def _seconds(self, seconds: Mapping[str, float]) -> Family:
        parts = "; ".join(f"{name}: {meaning}" for name, meaning in PARTS.items())
        text = f"Seconds by activity. {parts}."
        return self._by("counter", "quire:time_seconds", text, "part", seconds)

    def _one(self, kind: Kind, name: str, text: str, value: float) -> Family:
        """Return a metric with a single value."""
        family = Family(name, kind, text)
        family.add(self._labels, value)
        return family

    def _by(
        self, kind: Kind, name: str, text: str, label: str, values: Mapping[str, float]
    ) -> Family:
        """Return a metric with one value per value of `label`."""
        family = Family(name, kind, text)
        for key, value in values.items():
            family.add({**self._labels, label: key}, value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Family:
        family = Family(name, "histogram", text)
        family.add_histogram(self._labels, histogram.bounds, histogram.counts, histogram.total)
        return family


def _lora_requests(use: LoraUse, max_loras: int) -> Family:
    """Return vLLM's metric: labels hold the state, and the value is its time."""
    text = "Names of adapters in the batch and in the queue; the value is the time."
    family = Family("vllm:lora_requests_info", "gauge", text)
    labels = {
        "max_lora": str(max_loras),
        "waiting_lora_adapters": ",".join(sorted(use.waiting)),
        "running_lora_adapters": ",".join(sorted(use.running)),
    }
    family.add(labels, time.time())
    return family


def _counters(s: EngineStats) -> tuple[tuple[str, str, int], ...]:
    scheduler = s.scheduler
    preemptions, queries, hits = 0, 0, 0
    if scheduler is not None:
        preemptions = scheduler.num_preemptions
        queries, hits = scheduler.prefix_cache_queries, scheduler.prefix_cache_hits
    return (
        ("vllm:num_preemptions", "Preemptions.", preemptions),
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", hits),
        ("vllm:prompt_tokens", "Prompt tokens of requests with a first token.", s.prompt_tokens),
        ("vllm:generation_tokens", "Generated tokens.", s.generation_tokens),
        ("quire:engine_restarts", "Engine cores that replaced a lost one.", s.restarts),
        (
            "quire:requests_retried",
            "Requests that started again because the engine core was lost.",
            s.retried,
        ),
    )


_SERVER_COUNTERS = {
    "requests_rejected": ("rejected", "Requests refused because the queue was full."),
    "repeated_prompt_tokens": (
        "repeated_tokens",
        "Prompt tokens that repeat the beginning of an earlier prompt, cached or not.",
    ),
    "slow_client_outputs": (
        "slow_outputs",
        "Outputs that waited because their client read slowly.",
    ),
}
"""Metric → field of `EngineStats`, and what it counts."""
_HOST_COUNTERS = {
    "swap_preemptions": ("swap_preemptions", "Preemptions that stored KV blocks."),
    "kv_blocks_swapped_out": ("swapped_out", "Stored KV blocks of preempted sequences."),
    "kv_blocks_swapped_in": ("swapped_in", "KV blocks of preempted sequences copied back."),
    "kv_blocks_offloaded": ("stored", "Stored KV blocks that the prefix cache evicted."),
    "kv_blocks_saved": ("saved", "KV blocks written to files."),
    "kv_blocks_reloaded": ("loaded", "KV blocks of prefixes copied back."),
    "kv_load_failures": ("failed", "Damaged KV blocks, which were computed again."),
}
"""Metric → field of `HostTierStats`, and what it counts."""
_HISTOGRAMS = {
    "time_to_first_token": "From arrival to the first token.",
    "inter_token_latency": "Between tokens of a sequence.",
    "e2e_request_latency": "From arrival to the last token.",
    "request_queue_time": "From arrival to the batch.",
    "request_prefill_time": "From the batch to the first token.",
    "request_decode_time": "From the first token to the last.",
    "request_inference_time": "From the batch to the last token.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_params_n": "The request's n.",
    "request_params_max_tokens": "The request's max_tokens, if set.",
}
"""Field of `EngineStats` → what it counts. The metric of a time ends in `_seconds`."""


def _histograms(s: EngineStats) -> Iterator[tuple[str, str, Histogram]]:
    for name, text in _HISTOGRAMS.items():
        histogram: Histogram = getattr(s, name)
        is_time = histogram.bounds == LATENCIES
        yield f"{name}_seconds" if is_time else name, text, histogram
    # vLLM's older name, for dashboards that still use it.
    text = "As inter_token_latency_seconds."
    yield "time_per_output_token_seconds", text, s.inter_token_latency
    text = "Mean time per token of a sequence, without the first."
    yield "request_time_per_output_token_seconds", text, s.time_per_output_token
    yield "iteration_tokens_total", "Tokens computed in a step.", s.iteration_tokens
