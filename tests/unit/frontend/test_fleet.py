"""Two engine cores behind one front end, with the echo model."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from quire.core.errors import EngineDeadError, EngineRestartingError, InvalidRequestError
from quire.core.kv_sharing import KVEventsConfig, TransferConfig
from quire.core.messages import CoreInput
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client import supervisor
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.merged_calls import merged
from quire.frontend.client.replica_configs import replica_configs
from quire.metrics.reader import Counter, Histogram, Metric, read_metrics
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect
from tests.unit.engine.echo import BLOCK_SIZE, NUM_BLOCKS, follow
from tests.unit.engine.fakes import engine_config, resolved
from tests.unit.frontend.test_async_llm import started
from tests.unit.frontend.test_core_client import PATIENCE, until

DELTA, FINAL = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


def replicas(
    name: str = "echo", count: int = 2, threads: int | None = None, **flags: Any
) -> AbstractAsyncContextManager[AsyncLLM]:
    args = EngineArgs(data_parallel_size=count, **flags)
    found = resolved(name)
    if threads is not None:  # as many as there are cores, so that each replica gets its own
        found = replace(found, config=replace(found.config, num_threads=threads))
    return started(found, args=args)


def ask(
    engine: AsyncLLM, prompt: str, rank: int | None = None, **params: Any
) -> asyncio.Task[list[RequestOutput]]:
    async def collect() -> list[RequestOutput]:
        stream = engine.generate(prompt, SamplingParams(**params), data_parallel_rank=rank)
        return [output async for output in stream]

    return asyncio.create_task(collect())


def kill(engine: AsyncLLM, replica: int) -> None:
    client = engine._fleet.replicas[replica].client
    assert isinstance(client, ProcessClient)
    os.kill(client.pid, signal.SIGKILL)


def tokens(engine: AsyncLLM) -> list[int]:
    """Generated tokens of each replica."""
    return [engine.stats.of(number).generation_tokens for number in (0, 1)]


def following(prompt: str, count: int) -> str:
    return bytes(range(ord(prompt) + 1, ord(prompt) + 1 + count)).decode()


async def test_requests_are_shared_and_follow_their_prefix() -> None:
    async with replicas("slow") as engine:
        assert engine.max_num_seqs == 2 * engine.resolved.config.scheduler.max_num_seqs
        tasks = [ask(engine, p, output_kind=FINAL, n=2, max_tokens=8) for p in "abcdef"]
        for task, prompt in zip(tasks, "abcdef", strict=True):
            [output] = await asyncio.wait_for(task, PATIENCE)
            assert [c.text for c in output.outputs] == [following(prompt, 8)] * 2
        assert tokens(engine) == [48, 48]
        assert engine.stats.generation_tokens == 96
        prefix = "p" * 4 * BLOCK_SIZE
        for turn in range(3):
            await ask(engine, prefix + str(turn), 1 if turn == 0 else None, max_tokens=2)
            assert tokens(engine) == [48, 48 + 2 * (turn + 1)]  # where the prefix is
        assert await engine.call("check_integrity") is None
        assert await engine.reset_prefix_cache()
        scheduler = engine.stats.scheduler
        assert scheduler.kv_blocks_total == 2 * NUM_BLOCKS


async def test_a_request_may_name_its_replica_and_counts_there() -> None:
    others = {"data_parallel_size_local": 2, "data_parallel_start_rank": 2}
    async with replicas(count=4, data_parallel_hybrid_lb=True, **others) as engine:
        await ask(engine, "a", 3, max_tokens=3)
        assert tokens(engine) == [0, 3]
        for rank in (1, 4, -1, 10**30):
            with pytest.raises(InvalidRequestError, match="replicas are 2 to 3"):
                await ask(engine, "a", rank)
        assert engine.num_unfinished == 0
        check_metrics(read_metrics(engine.stats, "m"))
        await engine.sleep()
        assert engine.stats.scheduler is None
        assert engine.error is not None
        await engine.wake_up()
        for rank in (2, 3):
            [*_, last] = await ask(engine, "a", rank, max_tokens=3)
            assert last.outputs[0].text == "bcd"


def check_metrics(found: list[Metric]) -> None:
    """Each metric has the number of its replica, after one request at replica 3."""
    counts = {
        m.labels["engine"]: m.value
        for m in found
        if isinstance(m, Counter) and m.name == "vllm:generation_tokens"
    }
    assert counts == {"2": 0, "3": 3}
    ttft = {
        m.labels["engine"]: m.count
        for m in found
        if isinstance(m, Histogram) and m.name == "vllm:time_to_first_token_seconds"
    }
    assert ttft == {"2": 0, "3": 1}
    seconds = [m.labels for m in found if m.name == "quire:time_seconds"]
    assert [label["engine"] for label in seconds if label["part"] == "http"] == ["2"]
    assert [label["engine"] for label in seconds if label["part"] == "model"] == ["2", "3"]
    keys = [(m.name, *sorted(m.labels.items())) for m in found]
    assert len(keys) == len(set(keys))


async def test_a_lost_replica_loses_and_repeats_nothing() -> None:
    """Its requests move to the other one at once, and streams go on behind their tokens."""
    async with replicas("slow") as engine:
        both = {"n": 2, "output_kind": DELTA, "ignore_eos": True, "logprobs": 0}
        told = ask(engine, "a", 0, **both, stop="ZZ", max_tokens=150)
        other = ask(engine, "b", 1, output_kind=DELTA, max_tokens=60, ignore_eos=True)
        await until(lambda: min(tokens(engine)) > 2)
        waiting = [
            ask(engine, p, 0, output_kind=FINAL, n=2, max_tokens=20, ignore_eos=True)
            for p in "cdef"
        ]
        await until(lambda: engine.num_unfinished == 6)
        kill(engine, 0)
        await until(lambda: engine.stats.retried == 5)
        assert engine.is_ready
        assert engine.error is None
        with pytest.raises(EngineRestartingError):
            await ask(engine, "a", 0)
        for task, prompt in zip(waiting, "cdef", strict=True):
            [output] = await asyncio.wait_for(task, PATIENCE)
            assert [c.text for c in output.outputs] == [following(prompt, 20)] * 2
        assert streamed(await told) == {0: echo("a", 150), 1: echo("a", 150)}
        assert streamed(await other) == {0: echo("b", 60)}
        await until(lambda: engine.stats.restarts == 1)
        assert [engine.stats.of(i).restarts for i in (0, 1)] == [1, 0]
        await until(lambda: engine._fleet.replicas[0].is_ready)
        await ask(engine, "a", 0, max_tokens=3)
        assert await engine.call("check_integrity") is None
        assert engine.num_unfinished == 0


def echo(prompt: str, count: int) -> list[int]:
    return [*accumulate([ord(prompt), *range(count)], lambda token, _: follow(token))][1:]


def streamed(outputs: list[RequestOutput]) -> dict[int, list[int]]:
    """Return the tokens of each sequence of a stream, and check what comes with them."""
    found: dict[int, list[int]] = {}
    for output in outputs:
        for part in output.outputs:
            found.setdefault(part.index, []).extend(part.token_ids)
            assert [*map(len, (part.text_ends, part.logprobs or part.token_ids))] == (
                2 * [len(part.token_ids)]
            )
    return found


async def test_a_stream_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends two cores may not end more of them. Its adapter was removed."""
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    calls: list[tuple[object, ...]] = []
    async with replicas("slow") as engine:
        monkeypatch.setattr(engine._adapters, "removed", lambda _: 7)
        monkeypatch.setattr(engine._fleet, "tell", lambda *call: calls.append(call))
        stream = ask(engine, "a", 0, output_kind=DELTA, max_tokens=250, ignore_eos=True)
        await until(lambda: tokens(engine)[0] > 2)
        kill(engine, 0)
        await until(lambda: tokens(engine)[1] > 2 and engine.stats.restarts == 1)
        assert calls == [("remove_lora", 7)]
        kill(engine, 1)
        with pytest.raises(EngineRestartingError):
            await stream


async def test_a_replica_that_is_given_up_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 0)
    async with replicas() as engine:
        kill(engine, 0)
        await until(lambda: isinstance(engine._fleet.replicas[0].error, EngineDeadError))
        [*_, last] = await ask(engine, "a", max_tokens=3)
        assert last.outputs[0].text == "bcd"
        kill(engine, 1)
        await until(lambda: type(engine.error) is EngineDeadError)


async def test_replicas_are_stopped_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked before any is waited for."""
    done: list[str] = []
    send, wait = ProcessClient.send, ProcessClient._wait_for_end

    def noting(client: ProcessClient, message: CoreInput) -> None:
        done.append(type(message).__name__)
        send(client, message)

    def waiting(client: ProcessClient, seconds: float) -> None:
        done.append("wait")
        wait(client, seconds)

    async with replicas() as engine:
        processes = [client._begun.popen for client in clients(engine)]
        monkeypatch.setattr(ProcessClient, "send", noting)
        monkeypatch.setattr(ProcessClient, "_wait_for_end", waiting)
    assert done[:4] == ["Shutdown", "Shutdown", "wait", "wait"]
    assert [process.returncode for process in processes] == [0, 0]


def clients(engine: AsyncLLM) -> list[ProcessClient]:
    found = [replica.client for replica in engine._fleet.replicas]
    return [client for client in found if isinstance(client, ProcessClient)]


@pytest.mark.skipif(detect().cores < 2, reason="each replica needs a core")
async def test_a_new_core_takes_no_time_of_another_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports on the cores of its own replica, and so does the one that stands by then."""
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    async with replicas(threads=1) as engine:
        configs = [replica._config for replica in engine._fleet.replicas]
        assert configs[0].cpus
        assert configs[0].cpus != configs[1].cpus
        begun: list[set[int]] = []
        monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: begun.append({*cpus}))
        for number in (1, 0):
            kill(engine, number)
            await until(lambda n=number: engine._fleet.replicas[n].num_restarts == 1)  # type: ignore[misc]
            await until(lambda: engine._fleet._standby.client is not None)
            await until(lambda n=number: len(begun) > n)  # type: ignore[misc]
            assert all(each == {*configs[number].cpus} for each in begun)
            begun.clear()


def test_replicas_share_no_core() -> None:
    config = replace(engine_config("echo"), num_threads=1)
    assert replica_configs(config, range(1)) == [config]
    first, second = replica_configs(config, range(2))
    assert not set(first.cpus) & set(second.cpus)
    assert len(first.cpus) == len(second.cpus)
    assert first.report_cache
    config = replace(config, transfer=TransferConfig("kv_both", "e", prefill_replicas=1))
    prompts, answers = replica_configs(config, range(2))
    assert (prompts.transfer, prompts.tiers.read_only) == (config.transfer, False)
    assert (answers.transfer.role, answers.tiers.read_only) == ("kv_consumer", True)
    config = replace(config, transfer=None, kv_events=KVEventsConfig())
    assert [each.kv_events for each in replica_configs(config, range(2))] == [
        KVEventsConfig(),
        KVEventsConfig(rank=1),
    ]
    assert replica_configs(replace(config, num_threads=10_000), range(2))[0].cpus == ()


def test_answers_to_one_call() -> None:
    digest = {"digest": "d"}
    assert merged("add_lora", [digest, None]) is None
    assert merged("add_lora", [digest, digest]) == digest
    assert merged("add_lora", [digest, {"error": "e"}]) == {"error": "e"}
    assert merged("start_profile", [False, True])
    status = {"active": False, "writing": True, "files": ["a"], "failures": []}
    done = {"active": False, "writing": False, "files": ["b"], "failures": ["c"]}
    both = {"active": False, "writing": True, "files": ["a", "b"], "failures": ["c"]}
    assert merged("profile_status", [status, done]) == both
    map_ = {
        "num_blocks": 4, "owners": ["7"], "kind": [2, 0], "owner": [0, -1], "count": [1, 3],
        "blocks_per_cell": 1,
    }  # fmt: skip
    tree = {
        "block_size": 8, "num_nodes": 2, "id": [0, 2], "parent": [-1, 0], "blocks": [1, 1],
        "users": [1, 0],
    }  # fmt: skip
    found = merged("kv_snapshot", [{"map": map_, "tree": tree}] * 2)
    assert found["map"] == {
        "num_blocks": 8, "owners": ["7", "7"], "kind": [2, 0, 2, 0], "owner": [0, -1, 1, -1],
        "count": [1, 3, 1, 3], "blocks_per_cell": 1,
    }  # fmt: skip
    assert found["tree"]["id"] == [0, 2, 4, 6]
    assert found["tree"]["parent"] == [-1, 0, -1, 4]
    assert found["tree"]["num_nodes"] == 4
