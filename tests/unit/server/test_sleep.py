"""A model that cannot be loaded again: the engine sleeps on, and says so."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import EngineDeadError
from tests.unit.server.fake_engine import Running


async def test_a_core_that_is_lost_while_it_wakes_up_leaves_the_engine_asleep(app: Running) -> None:
    app.engine.args = replace(app.engine.args, enable_sleep_mode=True)
    app.engine._asleep.begin(1)

    async def lost() -> None:
        raise EngineDeadError("The engine core has ended by signal SIGKILL.")

    app.engine._fleet.wake_up = lost  # type: ignore[assignment, method-assign]
    answer = await app.http.post("/wake_up")
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], "sleeps on" in error["message"]) == ("engine_sleeping", True)
    assert (await app.http.get("/is_sleeping")).json() == {"is_sleeping": True}
