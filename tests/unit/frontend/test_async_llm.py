"""AsyncLLM over a core in its own process or in this one, with the echo model."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.errors import EngineDeadError, EngineSleepingError, InvalidRequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.input import intake
from quire.frontend.input.seeds import derive_seed
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved
from tests.unit.engine.echo import EchoExecutor
from tests.unit.engine.fakes import ByteTokenizer, resolved
from tests.unit.frontend.test_core_client import FAKE_CORE, PATIENCE, gone, until
from tests.unit.server.fake_engine import LoopClient

DELTA = RequestOutputKind.DELTA
IN_A_PROCESS = partial(ProcessClient, FAKE_CORE)


@asynccontextmanager
async def started(
    found: Resolved, connect: Callable[[], Any] = IN_A_PROCESS, args: EngineArgs | None = None
) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM(found, ByteTokenizer(), args or EngineArgs(), connect)
    await engine.start_core()
    try:
        yield engine
    finally:
        engine.shutdown()


def running(
    name: str = "echo", *, process: bool = True, **generation_config: Any
) -> AbstractAsyncContextManager[AsyncLLM]:
    """An engine whose core has a process of its own, or steps in this loop."""
    in_loop = partial(LoopClient, 0.02 if name == "slow" else 0.0)
    return started(resolved(name, **generation_config), IN_A_PROCESS if process else in_loop)


async def collect(engine: AsyncLLM, prompt: Any, **params: Any) -> list[RequestOutput]:
    stream = engine.generate(prompt, SamplingParams(**params))
    return [output async for output in stream]


def text(outputs: list[RequestOutput], index: int = 0) -> str:
    return "".join(c.text for o in outputs for c in o.outputs if c.index == index)


async def test_streams_and_ends() -> None:
    async with running() as engine:
        assert engine.is_ready
        assert engine.facts == {"device": "none"}
        assert list(engine.phases) == ["spawn", "load"]
        outputs = await collect(engine, "a", max_tokens=None, output_kind=DELTA)
        assert text(outputs) == "bcdefghijklmnopqrstuvwxyz"
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].outputs[0].finish_reason == "stop"
        assert engine.num_unfinished == 0


async def test_many_at_once() -> None:
    async with running() as engine:
        prompts = [bytes([97 + i]).decode() for i in range(20)]
        answers = await asyncio.gather(
            *(collect(engine, p, max_tokens=4, ignore_eos=True, n=2) for p in prompts)
        )
        for prompt, outputs in zip(prompts, answers, strict=True):
            first, second = outputs[-1].outputs
            assert first.text == second.text
            assert first.token_ids[0] == ord(prompt) + 1
        assert engine.stats.generation_tokens == 160


async def test_a_stop_string_ends_the_sequence_in_the_core_too() -> None:
    async with running("slow", process=False) as engine:
        outputs = await collect(engine, "a", stop="fg", max_tokens=200, ignore_eos=True)
        assert outputs[-1].outputs[0].text == "bcde"
        assert outputs[-1].outputs[0].stop_reason == "fg"
        await idle(engine)


async def idle(engine: AsyncLLM) -> None:
    """Wait until the core has freed every block."""
    for _ in range(200):
        await collect(engine, "q", max_tokens=1)
        scheduler = engine.stats.scheduler
        if scheduler.num_running + scheduler.num_waiting + scheduler.kv_blocks_used == 0:
            return
    raise AssertionError("the core still holds blocks")


async def test_closing_the_generator_aborts() -> None:
    async with running("slow", process=False) as engine:
        stream = engine.generate([97], SamplingParams(max_tokens=200, ignore_eos=True, n=3))
        await anext(stream)
        assert (engine.stats.in_flight(), engine.stats.sequences()) == (1, 3)
        await stream.aclose()
        assert engine.num_unfinished == engine.stats.sequences() == 0
        await idle(engine)


async def test_cancelling_the_consumer_aborts() -> None:
    async with running("slow") as engine:
        consumer = asyncio.create_task(
            collect(engine, "a", max_tokens=200, ignore_eos=True, output_kind=DELTA)
        )
        await until(lambda: engine.num_unfinished == 1)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert engine.num_unfinished == 0
        await idle(engine)


async def test_abort_by_id_gives_the_consumer_what_there_is() -> None:
    async with running("slow", process=False) as engine:
        stream = engine.generate("a", SamplingParams(max_tokens=200, ignore_eos=True), "mine")
        await anext(stream)
        await engine.abort("mine")
        last = [output async for output in stream][-1]
        assert last.finished
        assert last.outputs[0].finish_reason == "abort"
        assert last.outputs[0].text.startswith("b")
        await engine.abort("nobody")


@pytest.mark.parametrize("way", ["close", "abort", "cancel"])
async def test_an_id_may_be_used_again_at_once_after_an_abort(way: str) -> None:
    """Each request gets its own tokens, whatever the core still says of the one before."""
    params = SamplingParams(max_tokens=40, ignore_eos=True, n=2, output_kind=DELTA)
    async with running() as engine:
        for trial in range(10):
            old = engine.generate([1], params, "same")
            await anext(old)
            if way == "close":
                await old.aclose()
            elif way == "abort":
                await engine.abort("same")
            else:
                reader = asyncio.create_task(anext(old))
                await asyncio.sleep(0)
                reader.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await reader
                await old.aclose()  # an output may have come first
            async with asyncio.timeout(PATIENCE):
                new = engine.generate([130 + trial], params, "same")
                outputs = [await anext(new)]
                assert [output.finished async for output in old][-1:] in ([], [True])
                outputs += [output async for output in new]
            for index in range(2):
                tokens = [t for o in outputs for c in o.outputs if c.index == index
                          for t in c.token_ids]  # fmt: skip
                assert tokens == list(range(131 + trial, 171 + trial)), (way, trial)
        assert engine.num_unfinished == 0
        await idle(engine)


async def test_a_late_close_leaves_the_next_request_of_the_id_alone() -> None:
    async with running(process=False) as engine:
        first = engine.generate("a", SamplingParams(max_tokens=1), "same")
        assert (await anext(first)).finished
        second = engine.generate("q", SamplingParams(max_tokens=3, output_kind=DELTA), "same")
        outputs = [await anext(second)]
        await first.aclose()
        async with asyncio.timeout(PATIENCE):
            outputs += [output async for output in second]
        assert text(outputs) == "rst"


class FailsReporters(EchoExecutor):
    """Fails the first sequences that report a prompt's log-probabilities."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        output = super().execute(batch)
        for i, name in enumerate(batch.request_ids):
            if self.left and self.params[name].prompt_logprobs is not None:
                self.left -= 1
                output.sampled_token_ids[i] = -1
                output.prompt_logprobs.pop(name, None)
                output.errors[name] = "its logits are not finite"
        return output


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_the_prompt_s_logprobs_come_though_the_first_sequence_fails(
    failures: int, kind: RequestOutputKind
) -> None:
    client = LoopClient(executor=partial(FailsReporters, failures))
    async with started(resolved(), lambda: client) as engine:
        async with asyncio.timeout(PATIENCE):
            outputs = await collect(
                engine, "abc", n=3, max_tokens=4, prompt_logprobs=0, output_kind=kind
            )
        reasons = {c.index: c.finish_reason for output in outputs for c in output.outputs}
        if failures == 1:
            assert reasons == {0: "error", 1: "length", 2: "length"}
            [found] = [o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None][-1:]
            assert [row and next(iter(row)) for row in found] == [None, 98, 99]
            texts = [text(outputs if kind is DELTA else outputs[-1:], i) for i in (1, 2)]
            assert texts == ["defg"] * 2
        else:
            assert set(reasons.values()) == {"error"}
        assert engine.num_unfinished == 0
        assert not client.core.has_work()
        assert client.core.scheduler.kv.pool.num_used == 0


async def test_bad_requests_are_refused_before_the_core() -> None:
    async with running("slow", process=False) as engine:
        for prompt, params in (("", {}), ([300], {}), ("a" * 300, {}), ("a", {"n": 900})):
            with pytest.raises(InvalidRequestError):
                await collect(engine, prompt, **params)
        first = engine.generate("a", SamplingParams(max_tokens=None, ignore_eos=True), "twice")
        await anext(first)
        with pytest.raises(InvalidRequestError, match="in use"):
            await anext(engine.generate("a", SamplingParams(), "twice"))
        await first.aclose()


async def test_a_long_prompt_is_tokenized_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "INLINE_CHARACTERS", 10)
    async with running(process=False) as engine:
        [*_, last] = await collect(engine, {"prompt": "a" * 11}, max_tokens=2)
        assert last.outputs[0].text == "bc"


async def test_texts_that_a_tokenizer_is_slow_at_leave_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: a second tokenizer process gained nothing, because the event loop did its work."""
    threads: list[int] = []

    class Watched(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            threads.append(threading.get_ident())
            return super().encode(text, add_special_tokens)

    monkeypatch.setattr("tests.unit.frontend.test_async_llm.ByteTokenizer", Watched)
    monkeypatch.setattr(intake, "INLINE_SECONDS", 0.0)
    async with running(process=False) as engine:
        for _ in range(2):
            await collect(engine, {"prompt": "a" * 11}, max_tokens=2)
    inside = [thread == threading.get_ident() for thread in threads]
    assert inside == [True, False]


async def test_seeds_follow_the_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is tokenized in a thread arrives at the core after one behind it."""
    behind = threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert len(text) == 1 or behind.wait(10.0)
            return super().encode(text, add_special_tokens)

    monkeypatch.setattr("tests.unit.frontend.test_async_llm.ByteTokenizer", Slow)
    monkeypatch.setattr(intake, "INLINE_CHARACTERS", 10)
    async with running(process=False) as engine:
        work = engine._intake.process
        params = SamplingParams(temperature=1.0)
        first = asyncio.create_task(work("a", "a" * 11, params))
        await asyncio.sleep(0)
        second = await work("b", "b", params)
        behind.set()
        seeds = [r.children[0].sampling_params.seed for r in (await first, second)]
        assert seeds == [derive_seed(0, 0), derive_seed(0, 1)]


async def test_a_slow_consumer_gets_several_steps_at_once() -> None:
    async with running(process=False) as engine:
        stream = engine.generate("a", SamplingParams(max_tokens=25, output_kind=DELTA))
        outputs = []
        async for output in stream:
            outputs.append(output)
            await until(lambda: engine.num_unfinished == 0)
        assert text(outputs) == "bcdefghijklmnopqrstuvwxyz"
        assert len(outputs) <= 2


async def test_the_model_s_sampling_values_are_the_default() -> None:
    async with running(process=False, temperature=0.5) as engine:
        assert engine.default_sampling_params == {"temperature": 0.5}
        [*_, last] = [output async for output in engine.generate("a")]
        assert last.outputs[0].text == "bcdefghijklmnopq"


async def test_calls() -> None:
    async with running() as engine:
        assert await engine.call("num_bad_frames") == 0
        with pytest.raises(InvalidRequestError, match="nonsense"):
            await engine.call("nonsense")


async def test_shutdown_fails_what_is_under_way() -> None:
    async with running("slow") as engine:
        stream = engine.generate("a", SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(stream)
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            [output async for output in stream]
        engine.shutdown()


async def test_sleep_ends_the_core_and_wake_up_starts_one() -> None:
    async with running("slow") as engine:
        prompt = list(range(65, 65 + 17))
        before = await collect(engine, prompt, max_tokens=3)
        assert (await collect(engine, prompt, max_tokens=3))[-1].num_cached_tokens == 16
        slow = asyncio.create_task(collect(engine, "A", max_tokens=200, ignore_eos=True))
        await until(lambda: engine.num_unfinished == 1)
        await engine.sleep()
        assert (await slow)[-1].outputs[0].finish_reason == "abort"
        assert await engine.is_sleeping()
        assert gone(engine._fleet.replicas[0].client.pid)  # type: ignore[attr-defined]
        assert not engine.is_ready
        assert not engine.errored
        await engine.check_health()
        await engine.sleep()  # again, which changes nothing
        for call in (collect(engine, "a"), engine.reset_prefix_cache()):
            with pytest.raises(EngineSleepingError, match=r"wake_up\(\)"):
                await call
        await engine.wake_up(["weights"])
        assert await engine.is_sleeping()
        await engine.wake_up(["kv_cache"])
        after = await collect(engine, prompt, max_tokens=3)
        assert text(after[-1:]) == text(before[-1:])
        assert after[-1].num_cached_tokens == 0
        assert engine.stats.restarts == 0
        with pytest.raises(InvalidRequestError, match="mode is 'keep'"):
            await engine.sleep(mode="keep")
        with pytest.raises(InvalidRequestError, match="collective_rpc"):
            await engine.collective_rpc("f")
        await engine.sleep(level=2)  # and end while it sleeps


async def test_an_engine_starts_with_its_first_use() -> None:
    engine = AsyncLLM(resolved(), ByteTokenizer(), EngineArgs(), IN_A_PROCESS)
    engine._late_start = cache(lambda: asyncio.ensure_future(engine.start_core()))
    try:
        answers = await asyncio.gather(*(collect(engine, p, max_tokens=2) for p in "abc"))
        assert [text(outputs[-1:]) for outputs in answers] == ["bc", "cd", "de"]
        await engine.abort(["unknown", "ids"])
    finally:
        engine.shutdown()
