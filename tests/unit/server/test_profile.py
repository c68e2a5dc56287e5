"""Profiles over HTTP: what is answered, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.server.fake_engine import Running

NEW = {"active": False, "writing": False, "files": [], "failures": []}


class FakeProfilers:
    """The worker's end: a trace takes two looks to be written."""

    def __init__(self, app: Running) -> None:
        self.status: dict[str, Any] = dict(NEW)
        self.steps = 0
        app.core.executor.call = self.call  # type: ignore[method-assign]

    def call(self, method: str, args: list[Any]) -> Any:
        match method:
            case "start_profile":
                fresh = not self.status["active"]
                self.status = {**NEW, "active": True}
                return fresh
            case "stop_profile":
                self.status |= {"active": False, "writing": True}
                return dict(self.status)
            case "profile_status":
                self.status |= {"writing": False, "files": ["quire_1.1.pt.trace.json.gz"]}
                return dict(self.status)
            case "op_profile_steps":
                self.steps += 1
                return self.steps, self.steps < 2
            case "stop_op_profile":
                return {"steps": self.steps, "ops": []}
        return None


async def test_a_trace(app: Running) -> None:
    FakeProfilers(app)
    first = await app.http.post("/start_profile")
    assert (first.status_code, first.json()) == (200, {"status": "recording"})
    second = await app.http.post("/start_profile")
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "profiler_busy"
    stopped = await app.http.post("/stop_profile")
    assert stopped.json() == {"status": "stopped", "files": ["quire_1.1.pt.trace.json.gz"]}


async def test_a_trace_that_could_not_be_written(app: Running) -> None:
    profilers = FakeProfilers(app)
    await app.http.post("/start_profile")
    profilers.status["failures"] = ["No space left on device"]
    answer = await app.http.post("/stop_profile")
    assert answer.status_code == 500
    assert "No space left on device" in answer.json()["error"]["message"]
    assert (await app.complete()).status_code == 200


async def test_operations(app: Running) -> None:
    FakeProfilers(app)
    one, two = await asyncio.gather(
        app.http.post("/profile_ops", json={"steps": 3, "timeout_s": 5}),
        app.http.post("/profile_ops", json={}),
    )
    assert one.json() == {"steps": 2, "ops": []}
    assert two.status_code == 409
    again = await app.http.post("/profile_ops", json={"timeout_s": 0.1})
    assert again.status_code == 200


async def test_a_bad_request_for_operations(app: Running) -> None:
    for body in ({"steps": 0}, {"steps": 1001}, {"timeout_s": 31}, {"stps": 3}):
        answer = await app.http.post("/profile_ops", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in {"steps", "timeout_s", "stps"}
