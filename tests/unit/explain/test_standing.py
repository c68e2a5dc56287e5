"""Processes that sleep in the middle of their work, from made files of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.explain.standing import StateCount
from tests.unit.explain.test_surroundings import STAT, machine, write

CORE, RANK, TOKENIZER = "quire.engine.process", "quire.executor.rank", "quire.x.tokenizer_worker"


def asleep(root: Path, where: str, module: str, beside: str = "S") -> StateCount:
    """Return one look at process 8, which sleeps there, beside a rank in another state."""
    machine(root)
    files = {"proc/8/stat": STAT.format(state="S", wait=0), "proc/8/wchan": where}
    files |= {"proc/8/cmdline": f"python\0-m\0{module}\0x", "proc/7/cmdline": f"p\0-m\0{RANK}\0"}
    files |= {"proc/7/stat": STAT.format(state=beside, wait=0), "proc/7/wchan": "futex_do_wait"}
    write(root, files)
    count = StateCount((7, 8), root)
    count.sample()
    return count


@pytest.mark.parametrize("module", [CORE, TOKENIZER])
@pytest.mark.parametrize("where", ["hrtimer_nanosleep", "anon_pipe_write"])
def test_a_sleep_counts_whatever_others_do(where: str, module: str, tmp_path: Path) -> None:
    [seen] = asleep(tmp_path, where, module, beside="R").standing()
    assert (seen.pid, seen.share, seen.where, seen.computes) == (8, 1.0, where, module == CORE)
    assert seen.name == module.rpartition(".")[2]


@pytest.mark.parametrize("where", ["poll_schedule_timeout.constprop.0", "anon_pipe_read", "0", ""])
def test_waiting_for_work_is_no_sleep(where: str, tmp_path: Path) -> None:
    assert all(seen.pid != 8 for seen in asleep(tmp_path, where, CORE).standing())


@pytest.mark.parametrize(("beside", "counts"), [("R", False), ("S", True), ("T", False)])
def test_waiting_for_a_thread_counts_if_no_other_one_computes(
    beside: str, counts: bool, tmp_path: Path
) -> None:
    count = asleep(tmp_path, "futex_do_wait", CORE, beside)
    assert (8 in [seen.pid for seen in count.standing()]) is counts


def test_a_process_whose_other_thread_runs_works(tmp_path: Path) -> None:
    count = asleep(tmp_path, "futex_do_wait", CORE)
    write(tmp_path, {"proc/8/task/9/stat": STAT.format(state="R", wait=0)})
    again = StateCount((8,), tmp_path)
    again.sample()
    assert again.standing() == []
    assert count.standing()


def test_rare_sleeps_are_left_out(tmp_path: Path) -> None:
    count = asleep(tmp_path, "hrtimer_nanosleep", CORE)
    write(tmp_path, {"proc/8/wchan": "anon_pipe_read"})
    for _ in range(30):
        count.sample()
    assert all(seen.pid != 8 for seen in count.standing())
