"""The load generator against a small server that speaks OpenAI's streams."""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from quire.bench.serving.http_client import HTTPClient
from quire.bench.serving.load import Load, Request, make_load
from quire.bench.serving.sender import Outcome, send
from quire.bench.serving.serve import measure, print_result, run
from quire.bench.serving.slo import Slo
from quire.bench.serving.waits import most_at_once, sample
from quire.core.errors import ConfigError, QuireError
from quire.core.messages import CoreTimes
from quire.metrics.families import exposition
from quire.metrics.prometheus import MetricsCollector
from quire.metrics.replica_stats import engine_stats
from tests.unit.bench.fake_server import chat, completion, serving
from tests.unit.bench.parsed import bench_args


def flags(*argv: str) -> argparse.Namespace:
    return bench_args("serve", *argv)


SMALL = ("--num-prompts", "6", "--num-clients", "3", "--output-len", "4", "--input-len", "5")


def test_the_row_has_the_names_other_tools_read() -> None:
    with serving() as server:
        row = run(flags("--base-url", server.url + "/v1", *SMALL, "--repetitions", "2"))
    assert isinstance(row, dict)
    waits = ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
    rates = ["output_tok_s", "total_tok_s", "requests_s", "prompt_tokens", "output_tokens"]
    rest = ["cached_share", "max_concurrent_requests", "errors", "split", "event_loop_lag_ms"]
    assert list(row)[:16] == ["num_clients", "request_rate", *waits, *rates, *rest]
    for name in waits:
        assert list(row[name]) == ["mean", "p50", "p90", "p99"]
        assert 0 < row[name]["p50"] <= row[name]["p90"] <= row[name]["p99"]
    assert (row["num_clients"], row["request_rate"], row["errors"]) == (3, "inf", 0)
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_share"]) == (1, 4, 0)
    assert row["repetitions"] == 2
    assert set(row["min"]) == {*waits, *rates, *rest}
    assert row["split"] == row["event_loop_lag_ms"] == {}  # it tells nothing of its time
    assert row["model"] == "tiny"
    assert row["output_tok_s"] > 0
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert server.most_active == row["max_concurrent_requests"] == 3
    assert len(server.bodies) == 1 + 2 * 6
    for body in server.bodies:
        assert body["model"] == "tiny"
        assert len(body["prompt"]) == 5
        assert max(body["prompt"]) < 256
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True
    assert len({tuple(body["prompt"]) for body in server.bodies}) == len(server.bodies)


def test_each_replica_is_warmed_up() -> None:
    stats = engine_stats(range(3), 16)
    moments = itertools.count(1)

    def metrics() -> bytes:
        stats.replicas[0].on_step(None, next(moments), CoreTimes(model=1.0))
        return exposition(MetricsCollector(stats, "tiny").collect())

    with serving() as server:
        server.metrics = metrics
        run(flags("--base-url", server.url, *SMALL, "--repetitions", "1"))
    assert len(server.bodies) == 3 + 6
    assert len({tuple(body["prompt"]) for body in server.bodies[:3]}) == 3


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
    assert make_load(args, "m", 1).requests[-1].arrival > 0.0
    assert not make_load(args, "m", 1).closed_loop


def test_waiting_for_a_client_counts_as_waiting() -> None:
    """With one client and all requests due at once, each waits for those before it."""
    requests = [Request({"max_tokens": 4})] * 3
    load = Load("/v1/completions", requests, num_clients=1, closed_loop=False)
    with serving() as server:
        outcomes, _ = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert len({o.start for o in outcomes}) == 1
    assert outcomes[1].chunk_times[0] > outcomes[0].end
    assert outcomes[1].sent >= outcomes[0].end
    assert most_at_once(outcomes) == 1


@pytest.mark.parametrize(("answer", "endpoint"), [(completion, "completions"), (chat, "chat")])
def test_a_conversation_is_told_the_real_answers(answer: Any, endpoint: str) -> None:
    args = flags("--dataset-name", "multi-turn", "--num-turns", "3", *SMALL, "--endpoint", endpoint)
    load = make_load(args, "m", 0)
    assert (len(load), len(load.requests)) == (6, 2)
    with serving(answer) as server:
        outcomes, _ = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert [o.error for o in outcomes] == [None] * 6
    assert sum(o.repeats for o in outcomes) == 4
    for request in load.requests:
        if endpoint == "chat":
            [first] = request.body["messages"]
            [last] = [
                b["messages"]
                for b in server.bodies
                if len(b["messages"]) == 5 and b["messages"][0] == first
            ]
            assert [m["role"] for m in last] == ["user", "assistant"] * 2 + ["user"]
            assert last[1]["content"] == last[3]["content"] == "xxxx"
            assert (last[2]["content"], last[4]["content"]) == request.follow_ups
        else:
            answered, (one, two) = "t0 t1 t2 t3 ", request.follow_ups
            whole = f"{request.body['prompt']}{answered}\n{one}{answered}\n{two}"
            assert whole in [b["prompt"] for b in server.bodies]


def test_a_conversation_ends_with_an_error() -> None:
    load = make_load(flags("--dataset-name", "multi-turn", *SMALL), "m", 0)
    with serving(lambda body: ["[DONE]"]) as server:
        outcomes, _ = asyncio.run(send(load, lambda: HTTPClient(server.url)))
    assert len(outcomes) == len(load.requests) == 2
    assert all("no usage" in (o.error or "") for o in outcomes)


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
    row = sample(outcomes, elapsed, slo=Slo(ttft=60.0))
    assert row["errors"] == 5
    assert row["slo_attainment"] == 1 / 6, "an error met nothing"
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
        assert measure(flags(*args, "--model", "b"), server.url)["model"] == "b"
        with pytest.raises(ConfigError, match="it serves a, b"):
            run(flags(*args))
    with serving() as server, pytest.raises(ConfigError, match="does not serve 'other'"):
        run(flags("--base-url", server.url, *SMALL, "--model", "other"))


def test_flags_that_the_other_server_cannot_heed() -> None:
    with pytest.raises(ConfigError, match="--dtype=float32 cannot change the server"):
        run(flags("--base-url", "http://127.0.0.1:9", "--dtype", "float32", "--seed", "3"))


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--request-rate", "2", "--request-rates", "1", "2"), "not both"),
        (("--slo", "ttft=1", "--goodput", "ttft:1"), "not both"),
        (("--ramp-up-strategy", "linear"), "A ramp needs"),
        (
            (
                *("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1"),
                *("--ramp-up-end-rps", "2", "--request-rate", "3"),
            ),
            "no --request-rate",
        ),
    ],
)
def test_flags_that_contradict_each_other(argv: tuple[str, ...], what: str) -> None:
    with serving() as server, pytest.raises(ConfigError, match=what):
        run(flags("--base-url", server.url, *SMALL, *argv))


def test_the_numbers_by_hand() -> None:
    good = Outcome(1.0, [1.5, 1.6, 1.8], 2.0, 3, sent=1.0, prompt_tokens=9, cached_tokens=3)
    later = Outcome(2.0, [2.1], 2.2, 1, sent=2.0, prompt_tokens=1, repeats=True)
    bad = Outcome(1.0, [9.0], 9.0, error="x", sent=1.0)
    row = sample([good, later, bad], elapsed=2.0, slo=Slo(ttft=0.5, itl=0.15))
    assert row["ttft_ms"]["p50"] == pytest.approx(300)
    assert row["ttft_first_ms"]["p99"] == pytest.approx(500)
    assert row["ttft_later_ms"]["mean"] == pytest.approx(100)
    assert row["tpot_ms"]["p50"] == pytest.approx(150)
    assert row["itl_ms"]["p50"] == pytest.approx(150)
    assert row["itl_ms"]["p99"] == pytest.approx(199)
    assert row["e2e_ms"]["mean"] == pytest.approx(600)
    assert row["output_tok_s"] == pytest.approx(2.0)
    assert row["total_tok_s"] == pytest.approx(7.0)
    assert row["requests_s"] == pytest.approx(1.0)
    assert row["cached_share"] == pytest.approx(0.3)
    assert row["max_concurrent_requests"] == 2
    assert row["errors"] == 1
    assert row["goodput"] == pytest.approx(0.5), "the first request's ITL is too long"
    assert row["slo_attainment"] == pytest.approx(1 / 3)
    few = sample([good], 1.0, metrics=("tpot",), percentiles=(99.9,))
    assert list(few["tpot_ms"]) == ["mean", "p99.9"]
    assert "ttft_ms" not in few


def test_rates_in_turn_are_drawn(tmp_path: Path) -> None:
    argv = ("--request-rates", "200", "inf", "--goodput", "ttft:60000", "--repetitions", "1")
    folder = tmp_path / "plots"
    folder.mkdir()  # `main` makes it before anything is measured
    with serving() as server:
        rows = run(flags("--base-url", server.url, *SMALL, *argv, "--plot-dir", str(folder)))
    assert isinstance(rows, list)
    assert [row["request_rate"] for row in rows] == [200.0, "inf"]
    assert all(row["goodput"] == row["requests_s"] for row in rows)
    assert all(row["slo"] == "ttft=60" for row in rows)
    asked = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(asked)) == 1 + 2 * 6, "no rate finds another's prompts cached"
    names = {"itl_200.0.png", "itl_inf.png", "timeline_200.0.png", "timeline_inf.png"}
    assert {path.name for path in folder.iterdir()} == names | {"throughput_latency.png"}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000
    out = io.StringIO()
    print_result(rows, out)
    title, *lines = out.getvalue().splitlines()
    assert title == "bench serve (2 rows)"
    assert [line.split()[0] for line in lines[-3:]] == ["request_rate", "200.0", "inf"]


def test_a_picture_that_cannot_be_drawn_costs_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        absent = str(tmp_path / "removed")
        row = run(flags("--base-url", server.url, *SMALL, "--plot-dir", absent))
    assert isinstance(row, dict)
    assert "cannot be written" in capsys.readouterr().err


def test_the_waits_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--dataset-name", "prefix-shared", "--prefix-len", "7", "--num-prefixes", "2")
    with serving() as server:
        row = run(flags("--base-url", server.url, *SMALL, *argv, "--repetitions", "1"))
    assert all(len(body["prompt"]) == 12 for body in server.bodies)
    out = io.StringIO()
    print_result(row, out)
    lines = out.getvalue().splitlines()
    at = lines.index("milliseconds (6 rows)")
    assert lines[at + 1].split() == ["mean", "p50", "p90", "p99"]
    names = ["ttft", "tpot", "itl", "e2e", "ttft_first", "ttft_later"]
    assert [line.split()[0] for line in lines[at + 2 :]] == names
    assert not any(line.split()[0].startswith("ttft") for line in lines[:at])


def test_prompts_of_a_file_are_forgotten_between_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "Tell me more.", "output_tokens": 2}\n')
    argv = ("--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", "2")
    with serving() as server:
        row = measure(flags(*argv, "--repetitions", "2"), server.url)
    assert server.resets == 0
    told = capsys.readouterr().err
    assert "cannot clear its prefix cache" in told
    assert "p.jsonl has only 1 prompts: some of 2 repeat" in told
    assert row["num_prompts"] == 2
    assert row["output_tokens"] == 2
    with serving() as server:
        server.forgets = True
        measure(flags(*argv, "--repetitions", "2"), server.url)
    assert server.resets == 2
    assert "let go" not in capsys.readouterr().err


def test_nothing_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(QuireError, match=rf"{url} does not answer.*Check --base-url"):
            measure(flags("--base-url", url), url)
