"""Replicas on two machines, here two groups of processes: `quire serve`, and one `--headless`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.serving import QUIRE, Server, serving, until
from tests.faults.test_processes import Stream
from tests.ports import free_port
from tests.unit.executor.test_nodes import KEY

BLOCKS = ("--num-gpu-blocks-override", "256", "--num-threads", "1")
OTHER = ("-dp", "2", "-dpl", "1", "--data-parallel-start-rank", "1")
LATE = 60.0


@dataclass
class Machines:
    """The server, and the other machine, which may be replaced."""

    server: Server
    other: subprocess.Popen[bytes]
    flags: tuple[str, ...]

    def command_for(self, model: Path | str, *flags: str) -> list[str]:
        """What starts another machine."""
        return [*QUIRE, "serve", str(model), "--headless", *BLOCKS, *self.flags, *flags]

    def ask(self, rank: int) -> str | None:
        """What a replica answers; None if it is not ready."""
        headers = {"X-data-parallel-rank": str(rank)}
        body = {"prompt": "once upon", "max_tokens": 8, "temperature": 0}
        answer = self.server.http.post("/v1/completions", json=body, headers=headers)
        return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else None

    def core(self) -> psutil.Process:
        """The other machine's core."""
        [core] = psutil.Process(self.other.pid).children()
        return core

    def refused(self, model: Path | str, *flags: str, key: str = KEY) -> str:
        """What a further machine says."""
        command = self.command_for(model, *flags)
        environment = os.environ | {"QUIRE_CLUSTER_KEY": key}
        ended = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=LATE, check=False, env=environment
        )
        assert ended.returncode == 2, ended.stderr
        return ended.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def machines(tiny_model: Path) -> Iterator[Machines]:
    where = ("--data-parallel-rpc-port", str(free_port()), *OTHER)
    flags = (*where[:-2], "--data-parallel-backend", "mp", "--step-timeout", "5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_CLUSTER_KEY", KEY)
        found = Machines(None, None, where)  # type: ignore[arg-type]
        found.other = subprocess.Popen(found.command_for(tiny_model))
        try:
            with serving(tiny_model, *BLOCKS, *flags) as found.server:
                yield found
            assert found.other.wait(LATE) == 0  # it hears that the server is stopped
        finally:
            found.other.kill()
            found.other.wait()


def test_both_machines_give_the_text_of_one_process(machines: Machines, server: Server) -> None:
    assert [machines.ask(rank) for rank in (0, 1)] == [server.text()] * 2
    metrics = machines.server.http.get("/metrics").text
    name = r'generation_tokens_total{engine="(\d)",model_name="tiny"} (\S+)'
    assert re.findall(name, metrics) == [("0", "8.0"), ("1", "8.0")]


@pytest.mark.slow
def test_machines_that_do_not_belong_are_refused_by_name(
    machines: Machines, tiny_model: Path
) -> None:
    """On both sides; then the replicas answer as before."""
    other = ("-dp", "4", "--data-parallel-start-rank", "3")
    for said, why in (
        (machines.refused(tiny_model), "replica 1 is there already, from 127.0.0.1"),
        (
            machines.refused(tiny_model, *other),
            "replica 3 is not one of those on other machines, 1",
        ),
        (machines.refused(tiny_model, key=KEY[::-1]), "it has another key"),
    ):
        assert why in said
        until(lambda why=why: why in machines.server.log.read_text())  # type: ignore[misc]
    assert machines.ask(0) == machines.ask(1)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["core", "machine", "stopped core"])
def test_a_stream_goes_on_and_the_machine_comes_back(
    machines: Machines, tiny_model: Path, lost: str
) -> None:
    """Another model is refused meanwhile."""
    fields = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    canary, expected = machines.ask(1), machines.server.text(**fields)
    core = machines.core()
    spent = core.cpu_times().user
    streams = [Stream(machines.server, **fields) for _ in range(4)]
    until(lambda: core.cpu_times().user > spent)
    if lost == "machine":
        machines.other.kill()
        machines.other.wait()
    elif lost == "core":
        core.kill()
    else:
        core.suspend()
        streams += [Stream(machines.server, **fields) for _ in range(4)]  # the others may be done
    assert {stream.text() for stream in streams} == {expected}
    assert machines.ask(0) == canary
    until(lambda: not core.is_running())
    if lost == "machine":
        assert machines.ask(1) is None
        assert "replica 1 has another model" in machines.refused("embedded", "--dtype", "float32")
        machines.other = subprocess.Popen(machines.command_for(tiny_model))
    until(lambda: machines.ask(1) == canary)
