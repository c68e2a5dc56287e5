"""Tokenizing in processes: the same tokens, the same errors, and a loop that stays free."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from quire.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from quire.frontend.workers import pool as workers
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.frontend.workers.tokenizer_worker import BadWords, ChatPrompt, tokenize
from quire.text.bad_words import word_tokens
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.unit.frontend.test_core_client import until

VOCAB_SIZE = 300
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
DEADLY = (
    "import os, sys, time; from quire.frontend.workers import tokenizer_worker as w\n"
    "original = w.tokenize\n"
    "def tokenize(tokenizer, prompt):\n"
    "    if prompt == 'die': os._exit(7)\n"
    "    if prompt == 'hang': time.sleep(600)\n"
    "    if prompt == 'slow': time.sleep(1)\n"
    "    if prompt == 'mark': open(sys.argv[1], 'a').write('x')\n"
    "    return original(tokenizer, prompt)\n"
    "w.tokenize = tokenize\n"
    "sys.exit(w.main(sys.stdin.buffer, sys.stdout.buffer))"
)


@asynccontextmanager
async def running(size: int = 1, marks: str = "") -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(size, None, VOCAB_SIZE, (sys.executable, "-c", DEADLY, marks))
    await pool.start()
    try:
        yield pool
    finally:
        pool.shutdown()


def chat(*contents: str, template: str | None = TEMPLATE) -> ChatPrompt:
    messages: list[dict[str, object]] = [{"role": "user", "content": c} for c in contents]
    return ChatPrompt(messages, chat_template=template)


async def test_the_same_tokens_as_in_the_process() -> None:
    tokenizer = load_tokenizer(None, vocab_size=VOCAB_SIZE)
    prompts = ["a b c", "é→😀", chat("hello", "there"), "x " * 100_000]
    async with running(size=2) as pool:
        found = await asyncio.gather(*(pool.tokenize(prompt) for prompt in prompts))
    assert [f.token_ids for f in found] == [tokenize(tokenizer, prompt) for prompt in prompts]
    assert found[-1].seconds > 0.0


async def test_errors_come_back_as_they_were_raised() -> None:
    async with running() as pool:
        with pytest.raises(InvalidRequestError, match="no thanks") as caught:
            await pool.tokenize(chat("x", template="{{ raise_exception('no thanks') }}"))
        assert caught.value.param == "messages"
        with pytest.raises(ConfigError, match="no chat template called"):
            await pool.tokenize(chat("x", template="unknown"))
        assert (await pool.tokenize("a")).token_ids


async def test_an_idle_worker_that_died_is_no_zombie() -> None:
    files = len(os.listdir("/proc/self/fd"))
    async with running() as pool:
        [worker] = pool._workers
        os.kill(worker.process.pid, signal.SIGKILL)
        await until(lambda: worker.process.returncode == -signal.SIGKILL)  # nobody asked it
        assert (await pool.tokenize("a b")).token_ids
    await asyncio.sleep(0)  # transports close
    assert len(os.listdir("/proc/self/fd")) == files


async def test_a_worker_that_died_is_replaced_and_its_work_repeated() -> None:
    async with running() as pool:
        [worker] = pool._workers
        os.kill(worker.process.pid, signal.SIGKILL)
        assert (await pool.tokenize("a b")).token_ids
        [other] = pool._workers
        assert other.process.pid != worker.process.pid


async def test_a_prompt_that_ends_its_worker_is_given_up() -> None:
    async with running() as pool:
        with pytest.raises(RuntimeError, match="ended its tokenizer process"):
            await pool.tokenize("die")
        assert (await pool.tokenize("a")).token_ids


async def test_a_cancelled_request_leaves_its_worker_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "ABANDONED_SECONDS", 60.0)
    async with running() as pool:
        [worker] = pool._workers
        task = asyncio.create_task(pool.tokenize("slow"))
        while pool._idle:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.tokenize("a")).token_ids == (await pool.tokenize("a")).token_ids
        await until(lambda: len(pool._idle) == 1)
        assert pool._workers == {worker}


async def test_a_cancelled_request_leaves_the_queue(tmp_path: Path) -> None:
    """No worker sees the prompts of those who left while they waited."""
    marks = tmp_path / "marks"
    async with running(marks=str(marks)) as pool:
        first = asyncio.create_task(pool.tokenize("slow"))
        waiting = [asyncio.create_task(pool.tokenize("mark")) for _ in range(20)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert pool.num_abandoned == 0
        await first
        assert (await pool.tokenize("a")).token_ids
    assert not marks.exists()


async def test_a_worker_that_nobody_waits_for_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "ABANDONED_SECONDS", 0.05)
    async with running() as pool:
        assert (await pool.tokenize("a")).token_ids
        [worker] = pool._workers
        task = asyncio.create_task(pool.tokenize("hang"))
        await until(lambda: not pool._idle)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.num_abandoned == 1
        assert (await pool.tokenize("a")).token_ids
        assert pool.num_abandoned == 0
        assert worker not in pool._workers
    assert not caplog.records


async def test_shutdown_fails_those_who_wait() -> None:
    async with running() as pool:
        tasks = [asyncio.create_task(pool.tokenize("hang")) for _ in range(5)]
        await until(lambda: not pool._idle)
        pool.shutdown()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, EngineDeadError)


async def test_bad_words_are_tokenized_as_in_the_process() -> None:
    tokenizer = load_tokenizer(None, vocab_size=VOCAB_SIZE)
    words = ["no", " way", "no"]
    async with running() as pool:
        found = await pool.tokenize(BadWords(words))
    assert found.sequences == word_tokens(tokenizer, words)


async def test_a_chat_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    async with running() as pool:
        with pytest.raises(InvalidRequestError, match="it has at least 1005,"):
            await pool.tokenize(replace(chat("x" * 998), max_tokens=100))
        fits = replace(chat("x" * 998, template="{{ 'a' }}"), max_tokens=100)  # leaves it out
        assert (await pool.tokenize(fits)).token_ids == [97]


async def test_the_event_loop_turns_while_large_prompts_are_tokenized() -> None:
    """It turns again and again while a megabyte and a chat of 2,000 messages are tokenized."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running() as pool:
        await pool.tokenize("warm")
        turning = asyncio.create_task(turn())
        await pool.tokenize("a megabyte " * 90_000)
        after_text = turns
        await pool.tokenize(chat(*["hello there"] * 2000))
        turning.cancel()
    assert after_text > 10
    assert turns - after_text > 10


async def test_after_shutdown() -> None:
    async with running() as pool:
        pool.shutdown()
        with pytest.raises(EngineDeadError):
            await pool.tokenize("a")
