"""Traces reach a collector, here one of our own on the loopback interface."""

from __future__ import annotations

import builtins
import dataclasses
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.messages import CoreOutput, RequestEvent, StepOutputs
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.frontend.output.tracing import RequestTracer
from tests.unit.engine.fakes import NamedOutputs, input_processor

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"


class Collector:
    """Takes OTLP over HTTP and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        assert path == "/v1/traces"
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            self.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def values(attributes: Any) -> dict[str, Any]:
    found = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    found = Collector()
    yield found
    found.close()


def serve_one(tracer: RequestTracer, reason: FinishReason, headers: dict[str, str]) -> None:
    """A request of 8 tokens with n = 2, of which a chunk was cached."""
    processor = NamedOutputs(tracer=tracer)
    params = SamplingParams(n=2, temperature=0.5, max_tokens=7)
    inputs = RequestInputs(RequestOptions(trace_headers=headers))
    request = input_processor().process(
        "cmpl-1", list(range(8)), params, arrival_time=9.0, inputs=inputs
    )
    processor.add(dataclasses.replace(request, prepared=(9.0, 9.5)))
    events = []
    for name in ("cmpl-1_0", "cmpl-1_1"):
        events.append(RequestEvent(name, "admitted", 10.0, 2))
        events.append(RequestEvent(name, "encode", 10.0, 3, 10.5))
        events.append(RequestEvent(name, "prefill", 10.5, 4, 11.0))
        events.append(RequestEvent(name, "prefill", 11.0, 2, 12.0))
    first = [
        CoreOutput(c.request_id, [65], num_cached_tokens=2, scheduled_time=10.0)
        for c in request.children
    ]
    processor.process(StepOutputs(first, None, 12.0, events=events))
    last = [CoreOutput(c.request_id, [66], reason) for c in request.children]
    processor.process(StepOutputs(last, None, 15.0))


def test_a_request_is_a_trace(collector: Collector) -> None:
    tracer = RequestTracer(collector.endpoint, "tiny")
    serve_one(
        tracer,
        FinishReason.LENGTH,
        {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=b"},
    )
    tracer.shutdown()
    tracer.shutdown()
    assert collector.resources[0]["service.name"] == "quire"
    [root] = [span for span in collector.spans if span.name == "llm_request"]
    assert root.trace_id.hex() == TRACE_ID
    assert root.parent_span_id.hex() == PARENT_ID
    assert root.trace_state == "a=b"
    assert root.end_time_unix_nano - root.start_time_unix_nano == 6_000_000_000
    assert values(root.attributes) == {
        "gen_ai.provider.name": "quire",
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.n": 2,
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": 8,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.prompt_tokens": 8,
        "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.latency.time_in_queue": 1.0,
        "gen_ai.latency.time_to_first_token": 3.0,
        "gen_ai.latency.e2e": 6.0,
        "gen_ai.latency.time_in_model_prefill": 2.0,
        "gen_ai.latency.time_in_model_decode": 3.0,
        "gen_ai.latency.time_in_model_inference": 5.0,
        "quire.num_preemptions": 0,
    }
    children = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert [span.name for span in children] == [
        "images", "queue", "encode", "prefill", "decode",
    ] * 2  # fmt: skip
    assert values(children[2].attributes)["quire.tokens"] == 3
    assert {span.trace_id.hex() for span in children} == {TRACE_ID}
    prefill = children[3]
    assert prefill.end_time_unix_nano - prefill.start_time_unix_nano == 1_500_000_000
    assert values(prefill.attributes) == {
        "quire.sequence.id": "cmpl-1_0",
        "quire.tokens": 6,
        "quire.chunks": 2,
    }


def test_a_failure_is_one_and_needs_no_parent(collector: Collector) -> None:
    tracer = RequestTracer(collector.endpoint, "tiny")
    serve_one(tracer, FinishReason.ERROR, {})
    serve_one(tracer, FinishReason.STOP, {"traceparent": "nonsense"})
    tracer.shutdown()
    roots = [span for span in collector.spans if span.name == "llm_request"]
    assert [span.parent_span_id for span in roots] == [b"", b""]
    assert [span.status.code for span in roots] == [2, 0]


def test_what_a_thread_cannot_take_is_dropped(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire.frontend.output.tracing.MAX_WAITING", 1)
    release = threading.Event()
    monkeypatch.setattr(RequestTracer, "_trace", lambda *_: release.wait())
    tracer = RequestTracer(collector.endpoint, "tiny")
    for _ in range(4):
        serve_one(tracer, FinishReason.STOP, {})
    assert tracer.num_dropped in (2, 3)
    assert "faster than traces are made" in caplog.text
    release.set()
    tracer.shutdown()


@pytest.mark.parametrize("endpoint", ["grpc://localhost:4317", "localhost:4318", "http://", "x"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="no HTTP URL"):
        RequestTracer(endpoint, "tiny")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'quire\[otel\]'"):
        RequestTracer("http://localhost:4318/v1/traces", "tiny")
