"""The engine's counters as Prometheus' metrics, under vLLM's names."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

from quire.core.messages import HostTierStats, SchedulerStats, SpecDecodingStats, StageStats
from quire.metrics.families import Family
from quire.metrics.histogram import Histogram
from quire.metrics.stats import LATENCIES, EngineStats, LoraUse
from quire.metrics.times import PARTS

Kind = Literal["counter", "gauge"]
Fields = Mapping[str, tuple[str, str]]
"""Metric → the field that it reads, and what it counts."""

_REASONS = ("stop", "length", "abort", "error", "repetition")
_NO_CORE = SchedulerStats(0, 0, 0, 0, 0, 0, 0, 0, 0)


class MetricsCollector:
    """Reads `EngineStats` at each scrape; costs nothing in between.

    The label `engine` is the replica's number. What belongs to the server has that of the first.
    """

    def __init__(self, stats: EngineStats, model_name: str) -> None:
        self._replicas = [
            _Reader(each, {"model_name": model_name, "engine": str(number)}, stats.block_size)
            for number, each in enumerate(stats.replicas or [stats], stats.first_replica)
        ]
        self._server = _Reader(
            stats, {"model_name": model_name, "engine": str(stats.first_replica)}, stats.block_size
        )

    def collect(self) -> Iterator[Family]:
        """Yield all metrics, each with the samples of all replicas."""
        own = self._replicas[0].stats.seconds().keys()
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

    def __init__(self, stats: EngineStats, labels: Mapping[str, str], block_size: int) -> None:
        self.stats = stats
        self._labels = labels
        self._block_size = block_size

    def of_replica(self) -> Iterator[Family]:
        """Yield what each replica has."""
        stats, s = self.stats, self.stats.scheduler or _NO_CORE
        yield from self._fields("gauge", s, _SCHEDULER_GAUGES)
        yield from self._fields("gauge", stats, _GAUGES)
        used, cached = s.kv_blocks_used, s.kv_blocks_cached
        text = "KV-cache blocks by state; cached blocks are unused and hold a prefix."
        states = {"used": used, "cached": cached, "free": s.kv_blocks_total - used - cached}
        yield self._by("gauge", "quire:kv_blocks", text, "state", states)
        if self._block_size:
            yield self._cache_config(s.kv_blocks_total)
        yield from self._fields("counter", s, _SCHEDULER_COUNTERS)
        yield from self._fields("counter", stats, _COUNTERS)
        reasons = {reason: stats.finished[reason] for reason in _REASONS}
        text = "Finished sequences by reason."
        yield self._by("counter", "vllm:request_success", text, "finished_reason", reasons)
        if s.host_tier:
            yield from self._host_tier(s.host_tier)
        if s.spec_decoding:
            yield from self._speculation(s.spec_decoding)
        if s.stages:
            yield from self._stages(s.stages)
        yield self._seconds(stats.seconds())
        for name, text, histogram in _histograms(stats):
            yield self._histogram(f"vllm:{name}", text, histogram)

    def of_server(self, besides: Collection[str]) -> Iterator[Family]:
        """Yield what the server has once.

        Args:
            besides: parts of the time that replicas have.
        """
        stats = self.stats
        yield from self._fields("counter", stats, _SERVER_COUNTERS)
        text = "Fields of requests that had no effect, by endpoint."
        yield self._by("counter", "quire:ignored_fields", text, "endpoint", stats.ignored_fields)
        if stats.adapters is not None:
            yield _lora_requests(stats.adapters(), stats.max_loras or 0)
        seconds = stats.seconds()
        if left := {name: n for name, n in seconds.items() if name not in besides}:
            yield self._seconds(left)
        text = "How late the event loop of the API is, sampled while requests are in progress."
        yield self._histogram("quire:event_loop_lag_seconds", text, stats.event_loop_lag)

    def _cache_config(self, num_blocks: int) -> Family:
        """Return vLLM's metric of the KV cache's shape, which routers read; its value is 1."""
        family = Family("vllm:cache_config_info", "gauge", "The KV cache: labels hold its shape.")
        shape = {"block_size": str(self._block_size), "num_gpu_blocks": str(num_blocks)}
        family.add({**self._labels, **shape}, 1)
        return family

    def _host_tier(self, host: HostTierStats) -> Iterator[Family]:
        """Yield metrics of KV blocks outside of the KV cache."""
        yield from self._fields("gauge", host, _HOST_GAUGES)
        share = host.slots_used / max(1, host.slots_total)
        text = "Share of the host's KV blocks in use; 1 is all."
        yield self._one("gauge", "vllm:cpu_cache_usage_perc", text, share)
        yield from self._fields("counter", host, _HOST_COUNTERS)

    def _speculation(self, drafts: SpecDecodingStats) -> Iterator[Family]:
        yield from self._fields("counter", drafts, _DRAFT_COUNTERS)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        text = "Accepted drafts by position; 0 is the first."
        counts = {str(i): count for i, count in enumerate(drafts.num_accepted_tokens_per_pos)}
        yield self._by("counter", name, text, "position", counts)

    def _stages(self, stages: Sequence[StageStats]) -> Iterator[Family]:
        for name, (field, text) in _STAGE_COUNTERS.items():
            values = {str(number): getattr(stage, field) for number, stage in enumerate(stages)}
            yield self._by("counter", name, text, "stage", values)

    def _seconds(self, seconds: Mapping[str, float]) -> Family:
        parts = "; ".join(f"{name}: {meaning}" for name, meaning in PARTS.items())
        text = f"Seconds by activity. {parts}."
        return self._by("counter", "quire:time_seconds", text, "part", seconds)

    def _fields(self, kind: Kind, source: object, fields: Fields) -> Iterator[Family]:
        """Yield the metrics that are fields of `source`."""
        for name, (field, text) in fields.items():
            yield self._one(kind, name, text, getattr(source, field))

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


_SCHEDULER_GAUGES: Fields = {
    "vllm:num_requests_running": ("num_running", "Sequences in the batch."),
    "vllm:num_requests_waiting": ("num_waiting", "Sequences in the queue."),
}
_GAUGES: Fields = {
    "vllm:kv_cache_usage_perc": (
        "kv_cache_usage",
        "Share of the KV-cache blocks in use; 1 is all.",
    ),
    "quire:last_step_seconds": (
        "last_step",
        "When the newest step ended, on the machine's monotonic clock.",
    ),
}
_SCHEDULER_COUNTERS: Fields = {
    "vllm:num_preemptions": ("num_preemptions", "Preemptions."),
    "vllm:prefix_cache_queries": (
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
    ),
    "vllm:prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "quire:encoded_image_tokens": (
        "encoded_tokens",
        "Prompt tokens whose images were read; an image in the encoder cache is not.",
    ),
}
_COUNTERS: Fields = {
    "vllm:prompt_tokens": ("prompt_tokens", "Prompt tokens of requests with a first token."),
    "vllm:generation_tokens": ("generation_tokens", "Generated tokens."),
    "quire:engine_restarts": ("restarts", "Engine cores that replaced a lost one."),
    "quire:requests_retried": (
        "retried",
        "Requests that moved to another engine core because theirs was lost.",
    ),
}
_SERVER_COUNTERS: Fields = {
    "quire:requests_rejected": ("rejected", "Requests refused because the queue was full."),
    "quire:repeated_prompt_tokens": (
        "repeated_tokens",
        "Prompt tokens that repeat the beginning of an earlier prompt, cached or not.",
    ),
    "quire:slow_client_outputs": (
        "slow_outputs",
        "Outputs that waited because their client read slowly.",
    ),
}
_HOST_GAUGES: Fields = {
    "vllm:num_requests_swapped": (
        "num_requests_swapped",
        "Preempted sequences with stored KV blocks.",
    )
}
_HOST_COUNTERS: Fields = {
    "quire:swap_preemptions": ("swap_preemptions", "Preemptions that stored KV blocks."),
    "quire:kv_blocks_swapped_out": ("swapped_out", "Stored KV blocks of preempted sequences."),
    "quire:kv_blocks_swapped_in": ("swapped_in", "KV blocks of preempted sequences copied back."),
    "quire:kv_blocks_offloaded": ("stored", "Stored KV blocks that the prefix cache evicted."),
    "quire:kv_blocks_saved": ("saved", "KV blocks written to files."),
    "quire:kv_blocks_reloaded": ("loaded", "KV blocks of prefixes copied back."),
    "quire:kv_load_failures": ("failed", "Damaged KV blocks, which were computed again."),
    "quire:kv_save_failures": ("unsaved", "KV blocks that could not be written to files."),
}
_DRAFT_COUNTERS: Fields = {
    "vllm:spec_decode_num_drafts": ("num_drafts", "Passes of a sequence with drafts."),
    "vllm:spec_decode_num_draft_tokens": ("num_draft_tokens", "Drafted tokens."),
    "vllm:spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Accepted drafts."),
}
_STAGE_COUNTERS: Fields = {
    "quire:stage_seconds": (
        "busy",
        "Seconds of a pipeline stage's steps, without waiting for rows.",
    ),
    "quire:hop_seconds": (
        "hop_seconds",
        "Seconds that rows took from a stage to the next one's machine and a receipt took back.",
    ),
    "quire:hop_bytes": ("hop_bytes", "Bytes of these rows."),
    "quire:hops": ("hops", "Steps with such rows."),
}
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
    "request_max_num_generation_tokens": "Tokens of the longest of a request's n sequences.",
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
