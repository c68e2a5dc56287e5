"""The server as a process: what it loads, what it costs while idle, how it leaves."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving import Server, serving, until

MAX_WAKES_PER_SECOND = 5
"""Of all threads of an idle process. Today: at most one."""


def threads(process: psutil.Process) -> list[dict[str, str]]:
    """Return the fields of `/proc/PID/task/TID/status` of each thread."""
    texts = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
    return [dict(line.split(":", 1) for line in text.splitlines()) for text in texts]


def asleep(process: psutil.Process) -> bool:
    """Return whether no thread runs. One that spins never sleeps."""
    return all(thread["State"].split()[0] == "S" for thread in threads(process))


def wakes(process: psutil.Process) -> int:
    """Return how often its threads have gone to sleep."""
    return sum(int(thread["voluntary_ctxt_switches"]) for thread in threads(process))


def test_no_process_has_torch(server: Server) -> None:
    assert server.text()
    parent = psutil.Process(server.process.pid)
    maps = [
        Path(f"/proc/{process.pid}/maps").read_text()
        for process in (parent, *parent.children(recursive=True))
    ]
    assert not any("libtorch" in text for text in maps)
    assert "msgspec" in maps[0]  # the right process
    assert any("quire/_native" in text for text in maps)  # the core's, too


def test_idle_costs_nothing(server: Server) -> None:
    server.text()
    parent = psutil.Process(server.process.pid)
    children = parent.children(recursive=True)
    # One may stand by, and still import what it will need.
    processes = [parent, *(p for p in children if "stand-by" not in p.cmdline())]
    # The API's, the core's, the tokenizer's; one for structures, once a test has asked for it.
    assert (
        len([p for p in processes if "quire.frontend.workers.grammar_worker" not in p.cmdline()])
        == 3
    )

    def idle() -> bool:
        """Return whether they sleep for three seconds. The last request may still be cleaned up
        after, and a stand-by be started."""
        before = [wakes(process) for process in processes]
        time.sleep(3)
        woken = [wakes(process) - b for process, b in zip(processes, before, strict=True)]
        return max(woken) <= 3 * MAX_WAKES_PER_SECOND and all(map(asleep, processes))

    until(idle)


def test_the_timeline_adds_up(server: Server) -> None:
    lines = [line.split() for line in server.log.read_text().splitlines()]
    phases = {f[0]: float(f[1]) for f in lines if len(f) == 3 and f[2] == "s"}
    total = phases.pop("start-up")
    assert {"resolve", "spawn", "front_end", "http"} <= phases.keys()
    assert abs(sum(phases.values()) - total) < 0.005 * (len(phases) + 1)
    assert phases["other"] > -0.005 * (len(phases) + 1), "a phase is counted twice"


def test_sigterm_finishes_what_is_under_way(tiny_model: Path) -> None:
    with serving(tiny_model) as server:
        core = psutil.Process(server.process.pid).children()
        answers: list[httpx.Response] = []
        request = threading.Thread(
            target=lambda: answers.append(server.complete(max_tokens=300, ignore_eos=True))
        )
        request.start()
        until(lambda: server.metric("generation_tokens_total"))
        with server.http.stream("GET", "/dashboard/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: snapshot"
            status = server.stop(signal.SIGTERM)
            list(lines)  # raises unless the stream was ended
        request.join(60)
        assert status == 0
        assert answers[0].json()["usage"]["completion_tokens"] == 300
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in core)


def test_keys_and_strict_fields(tiny_model: Path) -> None:
    with serving(tiny_model, "--api-key", "secret", "--strict-fields") as server:
        assert server.http.get("/health").status_code == 200
        assert server.complete().status_code == 401
        server.http.headers["authorization"] = "Bearer secret"
        assert server.text(user="me")
        refused = server.complete(unheard_of=1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "unheard_of")
        assert server.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("pool_size", ["1", "0"])
def test_a_shutdown_waits_no_longer_than_its_timeout(tiny_model: Path, pool_size: str) -> None:
    """Not even for a template that renders for 5 s, in a worker or in a thread."""
    flags = ["--shutdown-timeout", "1", "--tokenizer-pool-size", pool_size]
    with serving(tiny_model, *flags, "--trust-request-chat-template") as one:
        statuses: list[int] = []

        def ask() -> None:
            slow = "{% if 'aab' in messages[0]['content'] %}{% endif %}"
            body = {
                "messages": [{"role": "user", "content": "a" * 100_000}],
                "chat_template": f"{{% for i in range(99999) %}}{slow}{{% endfor %}}",
            }
            statuses.append(httpx.post(f"{one.url}/tokenize", json=body, timeout=60).status_code)

        client = threading.Thread(target=ask)
        client.start()
        until(lambda: one.http.get("/load").json()["server_load"])
        assert one.stop(signal.SIGTERM) == 0
        client.join(60)
        assert statuses == [503]


def test_abandoned_work_is_counted_and_ended(tiny_model: Path) -> None:
    """Chats and structures of clients that have left hold up the next client for a moment only."""
    with serving(tiny_model) as one:
        chat = {"messages": [{"role": "user", "content": "once upon a time " * 60_000}]}
        schemas = [{"type": "string", "pattern": f"(a|b{i})*c{{1,500}}"} for i in range(8)]
        bodies = [("/tokenize", chat)] * 8
        bodies += [("/v1/completions", {"prompt": "a", "guided_json": each}) for each in schemas]
        seen = []
        for path, body in bodies:
            with pytest.raises(httpx.ReadTimeout):
                one.http.post(path, json=body, timeout=httpx.Timeout(60, read=0.01))
            seen.append(one.http.get("/load").json()["server_load"])
        assert max(seen) > 0
        assert one.text(prompt="b " * 40)
        one.wait_until_idle()
        until(lambda: not one.http.get("/load").json()["server_load"])
        log = one.log.read_text()
        assert "Traceback" not in log
