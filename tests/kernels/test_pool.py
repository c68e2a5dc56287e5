"""The pool of kernel threads."""

import os
import random
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from quire.ops.native.kernels import Pool

RANDOM = random.Random(0)


def count(pool: Pool, tasks: int) -> torch.Tensor:
    counts = torch.zeros(tasks + 2, dtype=torch.int64)
    pool.count_tasks(counts.data_ptr(), tasks, RANDOM.random() < 0.5)
    assert counts[tasks:].tolist() == [0, 0]
    return counts[:tasks]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_task_runs_once(threads: int) -> None:
    pool = Pool(threads)
    assert pool.threads == threads
    for _ in range(300):
        tasks = RANDOM.choice([0, 1, 2, 3, threads, RANDOM.randrange(200), 5000])
        assert bool((count(pool, tasks) == 1).all())


def test_jobs_in_quick_succession_and_after_sleep() -> None:
    pool = Pool(2)
    counts = torch.zeros(3, dtype=torch.int64)
    for i in range(20_000):
        pool.count_tasks(counts.data_ptr(), 3, i % 2 == 0)
        if i % 4000 == 0:
            time.sleep(0.002)  # long enough for the worker to fall asleep
    assert counts.tolist() == [20_000] * 3


def test_several_callers_take_turns() -> None:
    pool = Pool(2)
    counts = [torch.zeros(17, dtype=torch.int64) for _ in range(4)]

    def call(mine: torch.Tensor) -> None:
        for i in range(500):
            pool.count_tasks(mine.data_ptr(), 17, i % 3 == 0)

    callers = [threading.Thread(target=call, args=(mine,)) for mine in counts]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(mine.tolist() == [500] * 17 for mine in counts)


def state(thread: str) -> tuple[str, int]:
    """Return whether a thread of this process runs (R) or sleeps (S), and how often it slept."""
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return fields["State"].split()[0], int(fields["voluntary_ctxt_switches"])


def test_an_idle_pool_uses_no_processor() -> None:
    others = set(os.listdir("/proc/self/task"))
    pools = [Pool(3) for _ in range(4)]
    for pool in pools:
        count(pool, 100)
    workers = set(os.listdir("/proc/self/task")) - others
    assert len(workers) == 4 * 2
    deadline = time.monotonic() + 20
    while any(state(worker)[0] != "S" for worker in workers):  # they spin for a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = [state(worker) for worker in workers]
    time.sleep(0.3)
    assert [state(worker) for worker in workers] == before, "one was woken"


def test_its_threads_end_with_it() -> None:
    before = set(os.listdir("/proc/self/task"))
    pool = Pool(5)
    its_own = set(os.listdir("/proc/self/task")) - before
    assert len(its_own) == 4
    count(pool, 10)
    del pool
    deadline = time.monotonic() + 20
    while its_own & set(os.listdir("/proc/self/task")):  # the system removes a joined one late
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_forked_child_computes_alone() -> None:
    pool = Pool(3)
    count(pool, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        counts = torch.zeros(100, dtype=torch.int64)
        pool.count_tasks(counts.data_ptr(), 100, True)
        right = counts.tolist() == [1] * 100
        del pool  # must not wait for threads that are not here
        os._exit(0 if right else 1)
    deadline = time.monotonic() + 20
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    assert status[1] == 0


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_pool_of_no_or_too_many_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 1024 threads, not {threads}"):
        Pool(threads)
