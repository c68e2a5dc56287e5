"""One output waits at most; later ones are merged into it."""

import asyncio

import pytest

from quire.core.errors import EngineDeadError
from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.frontend.output.stream import OutputStream


def output(text: str, index: int = 0, reason: str | None = None) -> RequestOutput:
    token = ord(text[0])
    completion = CompletionOutput(
        index, text, [token], -1.0 * token, [{token: Logprob(-1.0)}], reason
    )
    return RequestOutput("r", None, [1], [completion], reason is not None)


async def test_deltas_are_merged() -> None:
    stream = OutputStream(RequestOutputKind.DELTA)
    first = output("a")
    first.prompt_logprobs = [None]
    for part in (first, output("x", 1), output("b"), output("c", 0, "stop")):
        stream.put(part)
    merged = await stream.get()
    assert [(c.index, c.text, c.token_ids) for c in merged.outputs] == [
        (0, "abc", [97, 98, 99]),
        (1, "x", [120]),
    ]
    assert merged.outputs[0].cumulative_logprob == -99.0
    assert len(merged.outputs[0].logprobs or []) == 3
    assert merged.outputs[0].finish_reason == "stop"
    assert (merged.finished, merged.prompt_logprobs) == (True, [None])


async def test_of_cumulative_outputs_the_last_says_all() -> None:
    stream = OutputStream(RequestOutputKind.CUMULATIVE)
    stream.put(output("a"))
    last = output("ab")
    stream.put(last)
    assert await stream.get() is last


async def test_get_waits() -> None:
    stream = OutputStream(RequestOutputKind.DELTA)
    waiting = asyncio.ensure_future(stream.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.put(output("a"))
    assert (await waiting).outputs[0].text == "a"


async def test_an_error_comes_after_what_waits_and_stays() -> None:
    stream = OutputStream(RequestOutputKind.DELTA)
    stream.put(output("a"))
    stream.fail(EngineDeadError("dead"))
    assert (await stream.get()).outputs[0].text == "a"
    for _ in range(2):
        with pytest.raises(EngineDeadError):
            await stream.get()
