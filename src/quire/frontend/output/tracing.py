"""Traces of requests for OpenTelemetry collectors: `--otlp-traces-endpoint`.

A request's span has the attributes of the GenAI conventions, including older names from vLLM. Each
interval of its sequences is a child span: queue, prefill, decode … One thread makes the spans of
ended requests, another sends them in batches. Requests never wait for a collector: spans that it
does not take in time are dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quire.core.errors import ConfigError
from quire.core.extras import require
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.frontend.output.timeline import Span, Timeline
from quire.resolve.arguments import EngineArgs
from quire.system.records import dataclass

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Most ended requests that wait for their spans."""
FLUSH_SECONDS = 3.0
"""How long a shutdown waits for the collector to take the last spans."""
TRACE_HEADERS = ("traceparent", "tracestate")
"""Headers that make a request part of the client's trace (W3C Trace Context)."""

Attributes = dict[str, str | int | float | list[str]]


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """The data of a request's trace.

    Attributes:
        timelines: one per sequence.
        headers: `TRACE_HEADERS` as the client sent them.
    """

    request_id: str
    params: SamplingParams
    prompt_tokens: int
    cached_tokens: int
    metrics: RequestMetrics
    timelines: list[Timeline]
    headers: Mapping[str, str]


class RequestTracer:
    """Sends traces to a collector by OTLP over HTTP. Each engine has its own provider.

    Args:
        endpoint: the collector's URL, for example `http://localhost:4318/v1/traces`.
        model: the served model's name.

    Raises:
        ConfigError: the extra `otel` is not installed, or `endpoint` is no HTTP URL.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        _check(endpoint)
        exporter = "opentelemetry.exporter.otlp.proto.http"
        require(exporter, "--otlp-traces-endpoint", "otlp_traces_endpoint")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()  # reads OTEL_SERVICE_NAME and similar variables
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "quire"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._model = model
        self._ended: queue.Queue[EndedRequest | None] = queue.Queue(MAX_WAITING)
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, request: EndedRequest) -> None:
        """Trace a request that has ended; never waits."""
        try:
            self._ended.put_nowait(request)
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                logger.warning(
                    "requests end faster than traces are made; some requests have no trace"
                )

    def shutdown(self) -> None:
        """Send the waiting spans, for at most `FLUSH_SECONDS`. Harmless when repeated."""
        if not self._thread.is_alive():
            return
        try:
            self._ended.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer = self._provider.get_tracer("quire")
        propagator = TraceContextTextMapPropagator()
        while (request := self._ended.get()) is not None:
            try:
                self._trace(tracer, request, propagator.extract(request.headers))
            except Exception:
                logger.exception("request %s could not be traced", request.request_id)
        self._provider.shutdown()

    def _trace(self, tracer: Tracer, request: EndedRequest, context: Context) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        offset = time.time_ns() - time.monotonic_ns()

        def moment(seconds: float) -> int:
            """Convert a time on the monotonic clock to nanoseconds since the epoch."""
            return offset + int(seconds * 1e9)

        span = tracer.start_span(
            "llm_request",
            context,
            kind=SpanKind.SERVER,
            attributes=_attributes(request, self._model),
            start_time=moment(request.metrics.arrival_time),
        )
        inside = set_span_in_context(span, context)
        for timeline in request.timelines:
            for kind, start, end, attributes in _children(timeline):
                child = tracer.start_span(
                    kind, inside, attributes=attributes, start_time=moment(start)
                )
                child.end(moment(end))
        if any(timeline.finish_reason == "error" for timeline in request.timelines):
            span.set_status(Status(StatusCode.ERROR))
        span.end(moment(request.metrics.finished_time))


def request_tracer(args: EngineArgs) -> RequestTracer | None:
    """Return the tracer that `args` asks for, or None; raises as `RequestTracer`."""
    endpoint = args.otlp_traces_endpoint
    return None if endpoint is None else RequestTracer(endpoint, args.model)


def _check(endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return
    except ValueError:  # invalid brackets or port
        url = urlsplit("")
    hint = "a collector takes gRPC on port 4317 and HTTP on 4318" if url.scheme == "grpc" else ""
    raise ConfigError(
        f"--otlp-traces-endpoint {endpoint} is no HTTP URL{hint and ': ' + hint}.",
        fix="Give the collector's URL for OTLP over HTTP, "
        "for example http://localhost:4318/v1/traces.",
        param="otlp_traces_endpoint",
    )


def _attributes(request: EndedRequest, model: str) -> Attributes:
    params, seconds = request.params, request.timelines[0].durations()
    output_tokens = sum(timeline.output_tokens for timeline in request.timelines)
    found: dict[str, Any] = {
        "gen_ai.provider.name": "quire",
        "gen_ai.request.id": request.request_id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.n": params.n,
        "gen_ai.request.choice.count": params.n,
        "gen_ai.response.finish_reasons": [str(t.finish_reason) for t in request.timelines],
        "gen_ai.usage.input_tokens": request.prompt_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.usage.prompt_tokens": request.prompt_tokens,
        "gen_ai.usage.completion_tokens": output_tokens,
        "gen_ai.usage.cache_read.input_tokens": request.cached_tokens,
        "gen_ai.latency.time_in_queue": seconds["queue"],
        "gen_ai.latency.time_to_first_token": seconds["ttft"],
        "gen_ai.latency.e2e": seconds["e2e"],
        "gen_ai.latency.time_in_model_prefill": seconds["prefill"],
        "gen_ai.latency.time_in_model_decode": seconds["decode"],
        "gen_ai.latency.time_in_model_inference": seconds["inference"],
        "quire.num_preemptions": request.metrics.num_preemptions,
    }
    return {name: value for name, value in found.items() if value is not None}


def _children(timeline: Timeline) -> Iterator[tuple[str, float, float, Attributes]]:
    """Yield kind, start, end and attributes of each interval; adjacent chunks are merged."""
    for kind, group in groupby(timeline.spans(), key=lambda span: span[0]):
        spans: list[Span] = list(group)
        end = spans[-1][2]
        assert end is not None, "a request that runs is not traced"
        attributes: Attributes = {
            "quire.sequence.id": timeline.id,
            "quire.tokens": sum(tokens for _, _, _, tokens in spans),
        }
        if kind == "prefill":
            attributes["quire.chunks"] = len(spans)
        yield kind, spans[0][1], end, attributes
