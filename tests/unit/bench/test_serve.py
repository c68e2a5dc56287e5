"""The load generator against a small server that speaks OpenAI's streams."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quire.bench.http_client import HTTPClient
from quire.bench.main import add_arguments
from quire.bench.serve import Load, Outcome, make_load, run, sample, send
from quire.core.errors import ConfigError, QuireError

Answer = Callable[[dict[str, Any]], list[str]]
"""A request's body → the data of the stream's events."""


def completion(body: dict[str, Any]) -> list[str]:
    count = body["max_tokens"]
    events = [{"choices": [{"text": f"t{i} "}]} for i in range(count)]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}}
    return [*map(json.dumps, [*events, usage]), "[DONE]"]


def chat(body: dict[str, Any]) -> list[str]:
    count = body["max_tokens"]
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": "x"}] * count + [{}]
    events: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"completion_tokens": count}})
    return [*map(json.dumps, events), "[DONE]"]


class OpenAIServer:
    """Serves model "tiny" in a thread; keeps every body it was sent."""

    def __init__(self, answer: Answer, models: list[str]) -> None:
        self.answer = answer
        self.models = models
        self.bodies: list[dict[str, Any]] = []
        self.active = 0
        self.most_active = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                body = await reader.readexactly(length)
                if head.startswith(b"GET /metrics "):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                if head.startswith(b"GET /v1/models "):
                    listed = json.dumps({"data": [{"id": name} for name in self.models]}).encode()
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listed)
                    writer.write(head + listed)
                    continue
                await self.stream(json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for data in self.answer(body):
            event = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.002)
        self.active -= 1
        writer.write(b"0\r\n\r\n")


@contextmanager
def serving(answer: Answer = completion, models: tuple[str, ...] = ("tiny",)) -> Iterator[Any]:
    server = OpenAIServer(answer, list(models))
    started = threading.Event()
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        started.set()
        async with listener:
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        stops[0]()
        thread.join(10)


def flags(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["serve", *argv])


SMALL = ("--num-prompts", "6", "--num-clients", "3", "--output-len", "4", "--input-len", "5")


def test_the_row_has_the_names_other_tools_read() -> None:
    with serving() as server:
        row = run(flags("--base-url", server.url + "/v1", *SMALL, "--repetitions", "2"))
    keys = ["num_clients", "request_rate", "ttft_ms", "itl_ms", "e2e_ms", "output_tok_s", "errors"]
    assert list(row)[:7] == keys
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert list(row[name]) == ["p50", "p99"]
        assert 0 < row[name]["p50"] <= row[name]["p99"]
    assert (row["num_clients"], row["request_rate"], row["errors"]) == (3, "inf", 0)
    assert row["repetitions"] == 2
    measured = {"ttft_ms", "itl_ms", "e2e_ms", "output_tok_s", "errors"}
    assert set(row["min"]) == measured | {"split", "event_loop_lag_ms"}
    assert row["split"] == row["event_loop_lag_ms"] == {}  # it tells nothing of its time
    assert row["model"] == "tiny"
    assert row["output_tok_s"] > 0
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert server.most_active == 3
    assert len(server.bodies) == 1 + 2 * 6
    for body in server.bodies:
        assert body["model"] == "tiny"
        assert len(body["prompt"]) == 5
        assert max(body["prompt"]) < 256
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True
    assert len({tuple(body["prompt"]) for body in server.bodies}) == len(server.bodies)


def test_chat_counts_chunks_with_text_only() -> None:
    load = make_load(flags("--endpoint", "chat", *SMALL, "--no-ignore-eos"), "tiny", 0)
    with serving(chat) as server:
        outcomes, _ = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert [o.error for o in outcomes] == [None] * 6
    assert [len(o.chunk_times) for o in outcomes] == [4] * 6
    assert [o.output_tokens for o in outcomes] == [4] * 6
    [message] = server.bodies[0]["messages"]
    assert len(message["content"].split()) == 5
    assert "ignore_eos" not in server.bodies[0]


def test_a_repetition_is_the_same_for_the_same_seed() -> None:
    args = flags(*SMALL, "--request-rate", "50", "--burstiness", "0.5")
    assert make_load(args, "m", 1) == make_load(args, "m", 1)
    assert make_load(args, "m", 1) != make_load(args, "m", 2)
    assert make_load(args, "m", 1).arrivals[-1] > 0.0
    assert not make_load(args, "m", 1).closed_loop


def test_waiting_for_a_client_counts_as_waiting() -> None:
    """With one client and all requests due at once, each waits for those before it."""
    bodies = [{"max_tokens": 4}] * 3
    load = Load("/v1/completions", bodies, [0.0, 0.0, 0.0], num_clients=1, closed_loop=False)
    with serving() as server:
        outcomes, _ = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert len({o.start for o in outcomes}) == 1
    assert outcomes[1].chunk_times[0] > outcomes[0].end


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (["[DONE]"], "no usage"),
        (['{"usage": {"completion_tokens": 1}, "choices": []}'], r"without \[DONE\]"),
        (['{"error": {"message": "out of luck"}}'], "out of luck"),
        (["{not json"], "JSONDecodeError"),
    ],
)
def test_failures_are_counted_and_explained(events: list[str], reason: str) -> None:
    load = make_load(flags(*SMALL), "tiny", 0)
    answers = iter([completion({"max_tokens": 4}), *[events] * 5])
    with serving(lambda body: next(answers)) as server:
        outcomes, elapsed = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert sample(outcomes, elapsed)["errors"] == 5
    with serving(lambda body: events) as server, pytest.raises(QuireError, match=reason):
        run(flags("--base-url", server.url, *SMALL))


def test_nobody_there() -> None:
    load = make_load(flags(*SMALL), "tiny", 0)
    outcomes, elapsed = asyncio.run(send(load, lambda: HTTPClient("http://127.0.0.1:9")))
    assert all("Connection" in (o.error or "") for o in outcomes)
    with pytest.raises(QuireError, match="All 6 requests failed"):
        sample(outcomes, elapsed)


def test_the_model_is_named_or_the_only_one() -> None:
    with serving(models=("a", "b")) as server:
        args = ("--base-url", server.url, *SMALL, "--repetitions", "1")
        assert run(flags(*args, "--model", "b"))["model"] == "b"
        with pytest.raises(ConfigError, match="it serves a, b"):
            run(flags(*args))
    with serving() as server, pytest.raises(ConfigError, match="does not serve 'other'"):
        run(flags("--base-url", server.url, *SMALL, "--model", "other"))


def test_flags_that_the_other_server_cannot_heed() -> None:
    with pytest.raises(ConfigError, match="--dtype=float32 cannot change the server"):
        run(flags("--base-url", "http://127.0.0.1:9", "--dtype", "float32", "--seed", "3"))


def test_the_numbers_by_hand() -> None:
    good = Outcome(start=1.0, chunk_times=[1.5, 1.6, 1.8], end=2.0, output_tokens=3)
    bad = Outcome(start=1.0, chunk_times=[9.0], end=9.0, output_tokens=0, error="x")
    row = sample([good, bad], elapsed=2.0)
    assert row["ttft_ms"]["p50"] == pytest.approx(500)
    assert row["itl_ms"]["p50"] == pytest.approx(150)
    assert row["itl_ms"]["p99"] == pytest.approx(199)
    assert row["e2e_ms"]["p50"] == pytest.approx(1000)
    assert row["output_tok_s"] == pytest.approx(1.5)
    assert row["errors"] == 1
