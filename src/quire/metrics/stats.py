"""The engine's counters as plain numbers: `prometheus` exports them, `explain` reads them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.core.messages import CoreTimes, SchedulerStats
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import RequestMetrics
from quire.core.pooling_params import PoolingParams
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.metrics.histogram import Histogram, RecentLatencies, TimedHistogram
from quire.metrics.progress_log import ProgressLog
from quire.metrics.repeats import RepeatedPrefixes, Repeats
from quire.metrics.requests import Arrival, RecordedRequest, RequestMix, recorded
from quire.metrics.times import FrontTimes, joined

_MILLISECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_SECONDS = (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_PLAIN = SamplingParams()
LATENCIES = (*_MILLISECONDS, *_SECONDS)
TOKEN_COUNTS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))


class LoraUse(NamedTuple):
    """Names of the adapters of running and of waiting sequences."""

    running: set[str]
    waiting: set[str]


class EngineStats:
    """Counters and histograms since the start; times are on the monotonic clock."""

    replicas: Sequence[EngineStats] = ()
    """The counters of each of several engine cores (see `replica_stats`)."""
    sequences: Callable[[], int] = int
    """Returns the number of sequences that are being tokenized or have not ended."""
    first_replica = 0
    """The number of the first one."""
    block_size = 0
    """Tokens of a KV block; 0 if unknown."""
    _working_since = 0.0
    """When the latest request ended, or the first after a pause arrived; `_finish_gaps` has the
    seconds from there to the next end."""

    def __init__(self) -> None:
        self.scheduler: SchedulerStats | None = None
        """The latest one; None without a core."""
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = 0
        self.finished: Counter[str] = Counter()
        """Sequences by finish reason."""
        self.repeated_tokens = 0
        """Prompt tokens that repeat the beginning of an earlier prompt."""
        self.mix, self.ended_mix = RequestMix(), RequestMix()
        """Arrived and ended requests by what they ask for."""
        self.recorded = recorded()
        self.rejected = self.slow_outputs = self.aborted_tokens = 0
        """Requests refused because the queue was full; outputs that waited because their client
        read slowly; tokens, of prompts too, computed for sequences whose client left."""
        self.ignored_fields, self.refused, self.polls = (Counter[str]() for _ in range(3))
        """Fields without effect, by endpoint; requests with a client's error, by its code; GET
        requests by path."""
        self.restarts = self.retried = 0
        """Engine cores that replaced a lost one; requests that started again in another core."""
        self.scrape_seconds = 0.0
        """CPU seconds of GET /metrics."""
        self.time_to_first_token = Histogram(LATENCIES)
        self.inter_token_latency = Histogram(LATENCIES)
        self.time_per_output_token = Histogram(LATENCIES)
        """Per finished sequence: decode time over the number of tokens without the first."""
        self.e2e_request_latency = Histogram(LATENCIES)
        self.request_queue_time = Histogram(LATENCIES)
        self.request_prefill_time = Histogram(LATENCIES)
        self.request_decode_time = Histogram(LATENCIES)
        self.request_inference_time = Histogram(LATENCIES)
        self.request_prompt_tokens = Histogram(TOKEN_COUNTS)
        self.request_generation_tokens = Histogram(TOKEN_COUNTS)
        self.request_max_num_generation_tokens = Histogram(TOKEN_COUNTS)
        self.request_params_n = Histogram((1, 2, 5, 10, 20, 50, 100, 128))
        self.request_params_max_tokens = Histogram(TOKEN_COUNTS)
        self.iteration_tokens, self.front = TimedHistogram(TOKEN_COUNTS), FrontTimes()
        self.event_loop_lag = Histogram(LATENCIES)
        self.recent = RecentLatencies(
            {
                "ttft": self.time_to_first_token,
                "itl": self.inter_token_latency,
                "e2e": self.e2e_request_latency,
                "queue": self.request_queue_time,
            }
        )
        self.core: CoreTimes | None = None
        """Times as of the latest step."""
        self.last_step = 0.0
        """When the latest step ended."""
        self.max_loras: int | None = None
        """Maximum adapters per batch; None if the engine serves none."""
        self.adapters: Callable[[], LoraUse] | None = None
        """Returns the adapters in use."""
        self.in_flight: Callable[[], int] = int
        """Returns the number of requests that have not ended."""
        self.observer: Callable[[], None] | None = None
        """Called after each step."""
        self._repeats = RepeatedPrefixes()
        self._finish_gaps: deque[float] = deque(maxlen=64)
        self._log = ProgressLog()

    def of(self, replica: int) -> EngineStats:
        """Return the counters to use for a replica's events: they count for the whole, too."""
        return self.replicas[replica] if self.replicas else self

    def count_restart(self) -> None:
        self.restarts += 1

    def count_retry(self) -> None:
        self.retried += 1

    @property
    def kv_cache_usage(self) -> float:
        """Return the share of KV blocks in use, from 0 to 1."""
        s = self.scheduler
        return s.kv_blocks_used / s.kv_blocks_total if s and s.kv_blocks_total else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Return the share of looked-up prompt tokens that were cached, from 0 to 1."""
        s = self.scheduler
        return s.prefix_cache_hits / s.prefix_cache_queries if s and s.prefix_cache_queries else 0.0

    def seconds(self) -> dict[str, float]:
        """Return the time since the start by the names of `times.PARTS`."""
        return joined(self.front, self.core, self.request_queue_time.total)

    def seconds_to_finish(self, count: int, now: float) -> float | None:
        """Return how long `count` requests take at the recent rate; None if none has finished.

        Call it while there are requests.
        """
        if not self._finish_gaps:
            return None
        worked = sum(self._finish_gaps) + max(0.0, now - self._working_since)
        return count * worked / len(self._finish_gaps)

    def on_ready(self, num_blocks: int) -> None:
        """Record a new core with this many KV blocks, none in use."""
        self.scheduler = SchedulerStats(0, 0, 0, num_blocks, 0, 0, 0, 0, 0)

    def on_step(
        self, scheduler: SchedulerStats | None, now: float, times: CoreTimes | None = None
    ) -> None:
        known, self.core = self.core, times or self.core
        if scheduler is not None:
            # After an abort the core reports its state without a step.
            if self.scheduler is None or scheduler.num_steps > self.scheduler.num_steps:
                begin, end = (core or CoreTimes() for core in (known, self.core))
                rest = end.own - begin.own  # ends with the sending of the step before
                self.iteration_tokens.add(scheduler.step_tokens, end.model - begin.model, rest)
            self.scheduler = scheduler
        self._log.on_step(self, now)
        self.last_step = now
        if self.observer is not None:
            self.observer()

    def forget_core(self) -> None:
        """Reset what the lost core counted; the next one starts at zero."""
        self.scheduler = self.core = None
        self.restart_log()

    def restart_log(self) -> None:
        """Begin the log's interval again, because the counters do not continue."""
        self._log.restart()

    def on_arrival(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams | PoolingParams = _PLAIN,
        options: RequestOptions = NO_OPTIONS,
        images: Sequence[bytes] = (),
    ) -> Arrival:
        """Record a new request; pass the arrival to `on_request_finished`.

        `images`: digests of those in the prompt.
        """
        if not self.in_flight():
            self._working_since = time.monotonic()
        adapter = options.lora_request
        apart = (adapter and adapter.lora_int_id, *images)
        repeats = self._repeats.note(prompt_token_ids, options.cache_salt, apart)
        scores = isinstance(params, SamplingParams) and params.prompt_logprobs is not None
        if scores or options.skip_reading_prefix_cache:  # the whole prompt is computed by intent
            repeats = Repeats()
        asks = RequestMix()
        asks.add(params, options, repeats)
        self.mix.join(asks)
        record = RecordedRequest(time.monotonic(), len(prompt_token_ids), repeats.leading)
        if isinstance(params, SamplingParams):
            record.sequences, record.output_tokens = params.n, params.max_tokens or 0
        self.recorded.append(record)
        return Arrival(record, asks)

    def on_first_token(
        self, metrics: RequestMetrics, prompt_tokens: int, cached: int, repeated: int = 0
    ) -> None:
        """Record the first token of a request (of the first of its n sequences to have one).

        `repeated`: prompt tokens that an earlier prompt began with.
        """
        self.repeated_tokens += repeated
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached
        self.time_to_first_token.observe(metrics.first_token_time - metrics.arrival_time)

    def on_tokens(self, count: int, seconds: float | None) -> None:
        """Record new tokens of a sequence.

        Args:
            seconds: time since its previous tokens; None for its first ones.
        """
        self.generation_tokens += count
        if seconds is not None and count:
            self.inter_token_latency.observe(seconds)

    def on_sequence_finished(
        self, reason: str, tokens: int, decode_seconds: float, prompt_tokens: int = 0
    ) -> None:
        """Record the end of a sequence.

        Args:
            prompt_tokens: of its prompt, if they were computed for it.
        """
        self.finished[reason] += 1
        if reason == FinishReason.ABORT:
            self.aborted_tokens += tokens + prompt_tokens
        if tokens > 1:
            self.time_per_output_token.observe(decode_seconds / (tokens - 1))

    def on_request_finished(
        self,
        m: RequestMetrics,
        prompt_tokens: int,
        tokens: int,
        n: int,
        max_tokens: int | None,
        arrival: Arrival | None = None,
    ) -> None:
        if arrival is not None:
            arrival.record.output_tokens = tokens // n
            self.ended_mix.join(arrival.asks)
        self._finish_gaps.append(max(0.0, m.finished_time - self._working_since))
        self._working_since = m.finished_time
        self.e2e_request_latency.observe(m.finished_time - m.arrival_time)
        if m.first_scheduled_time:
            self.request_queue_time.observe(m.first_scheduled_time - m.arrival_time)
        if m.first_token_time:
            self.request_prefill_time.observe(m.first_token_time - m.first_scheduled_time)
            self.request_decode_time.observe(m.last_token_time - m.first_token_time)
            self.request_inference_time.observe(m.last_token_time - m.first_scheduled_time)
        self.request_prompt_tokens.observe(prompt_tokens)
        self.request_generation_tokens.observe(tokens)
        self.request_params_n.observe(n)
        if max_tokens is not None:
            self.request_params_max_tokens.observe(max_tokens)
