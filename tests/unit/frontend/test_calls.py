"""Calls of the core: each gets its own answer."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.errors import EngineDeadError, InvalidRequestError
from quire.core.messages import Call, CallResult
from quire.frontend.client.calls import CoreCalls


async def test_answers_in_any_order() -> None:
    sent: list[Call] = []
    calls = CoreCalls(sent.append)
    first, second = (asyncio.ensure_future(calls.call("echo", n, "x")) for n in range(2))
    await asyncio.sleep(0)
    assert [(c.method, c.args) for c in sent] == [("echo", [0, "x"]), ("echo", [1, "x"])]
    assert len(calls) == 2
    calls.answer(CallResult(sent[1].call_id, "second"))
    calls.answer(CallResult(sent[0].call_id, None, "no such thing"))
    assert await second == "second"
    with pytest.raises(InvalidRequestError, match="no such thing"):
        await first
    assert len(calls) == 0
    calls.answer(CallResult(sent[0].call_id, "again"))


async def test_nobody_waits_for_what_is_told() -> None:
    sent: list[Call] = []
    calls = CoreCalls(sent.append)
    calls.tell("remove", 3)
    assert (sent[0].method, sent[0].args, len(calls)) == ("remove", [3], 0)
    calls.answer(CallResult(sent[0].call_id, None, "not there"))


async def test_a_core_that_dies_ends_all() -> None:
    calls = CoreCalls(lambda call: None)
    waiting = [asyncio.ensure_future(calls.call("sleep")) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    calls.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError):
        await waiting[1]


async def test_a_call_that_cannot_be_sent_is_forgotten() -> None:
    def send(call: Call) -> None:
        raise EngineDeadError("gone")

    calls = CoreCalls(send)
    with pytest.raises(EngineDeadError):
        await calls.call("echo")
    assert len(calls) == 0
