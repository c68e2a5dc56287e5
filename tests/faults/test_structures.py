"""Rows 20 and 21, where native code breaks: a server with a compiler of structures that crashes,
hangs, and takes all memory, where one asks it to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from quire.system.hardware import detect
from tests.e2e.serving import Server, serving, until
from tests.faults.requests import assert_refused, assert_unharmed
from tests.faults.test_processes import children, core, healthy

CHECKER = "quire.frontend.workers.grammar_worker"
DEADLY = """
import os, signal, sys, time

sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["llguidance"]
import llguidance as real

Matcher = real.LLMatcher

def hang():
    signal.setitimer(signal.ITIMER_PROF, 0.5)  # sooner than it would be ended, and as it would be
    while True:
        pass

COMPILING = {
    "ABORT": os.abort,
    "SEGFAULT": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "HANG": hang,
    "MEMORY": lambda: bytearray(2**31),
    "NOISE": lambda: os.write(0, bytes(range(1, 100))),  # the socket that it is asked on
    "CHATTER": lambda: os.write(1, bytes(range(1, 100))),
}
FOLLOWING = {
    "FALL": os.abort,
    "STALL": lambda: time.sleep(600),
    "STUMBLE": lambda: "quire.executor.rank" in sys.orig_argv and os.abort(),
}

class Deadly:
    def __init__(self, tokenizer, grammar, *args, inner=None, **kwargs):
        self._grammar = grammar
        if inner is None:
            self._do(COMPILING)
        self._inner = inner or Matcher(tokenizer, grammar, *args, **kwargs)

    def deep_copy(self):
        return Deadly(None, self._grammar, inner=self._inner.deep_copy())

    def unsafe_compute_mask_ptr(self, *where):
        self._do(FOLLOWING)
        return self._inner.unsafe_compute_mask_ptr(*where)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _do(self, deeds):
        for word, deed in deeds.items():
            if word in self._grammar:
                deed()

real.LLMatcher = Deadly
"""
STEP_TIMEOUT = "5"
BLOCKS = ("--num-gpu-blocks-override", "256")


@contextmanager
def deadly_server(model: Path, folder: Path, *flags: str) -> Iterator[Server]:
    (folder / "llguidance").mkdir()
    (folder / "llguidance" / "__init__.py").write_text(DEADLY)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        with serving(model, *flags, log_folder=folder) as running:
            yield running


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("deadly")
    with deadly_server(tiny_model, folder, *BLOCKS, "--step-timeout", STEP_TIMEOUT) as server:
        yield server


@pytest.fixture(scope="module")
def canary(server: Server) -> str:
    return server.text()


@pytest.fixture(autouse=True)
def _unharmed(server: Server, canary: str) -> Iterator[None]:
    yield
    until(lambda: healthy(server))
    assert_unharmed(server, canary)


def ask(server: Server, regex: str, **fields: Any) -> httpx.Response:
    return server.complete(guided_regex=regex, max_tokens=4, **fields)


def served(server: Server, regex: str) -> None:
    response = ask(server, regex)
    assert response.status_code == 200, response.text


def checkers(server: Server) -> list[psutil.Process]:
    return [p for p in children(server) if CHECKER in p.cmdline()]


def num_lost(server: Server) -> int:
    return server.log.read_text().count("the grammar checker ended")


def restarts(server: Server) -> int:
    return server.log.read_text().count("the engine core is ready again")


def test_row_20_nothing_is_started_before_a_structure_is_asked_for(server: Server) -> None:
    assert not checkers(server)
    served(server, "[ab]{3}|CHATTER")
    [checker] = checkers(server)
    assert not any("torch" in Path(each.path).name for each in checker.memory_maps())


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("ABORT", "SIGABRT"),
        ("SEGFAULT", "SIGSEGV"),
        ("HANG", "to compile"),
        ("MEMORY", "memory"),
        ("NOISE", "invalid reply"),
    ],
)
def test_row_20_a_structure_that_breaks_its_compiler(server: Server, word: str, why: str) -> None:
    """Costs its own request an error, and nobody else anything; it is not tried again."""
    before = core(server).pid, num_lost(server)
    with ThreadPoolExecutor(4) as pool:
        deadly = pool.submit(ask, server, word)
        others = [pool.submit(ask, server, f"{word.lower()}{{{count}}}") for count in (1, 2, 3)]
        assert_refused(deadly.result(), "guided_regex", why)
        assert [other.result().status_code for other in others] == [200] * 3
    schema = {"type": "string", "pattern": f"^{word}$"}
    assert_refused(ask(server, word), "guided_regex", why)
    tools = [
        {"type": "function", "function": {"name": "sound", "strict": True}},
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}},
    ]
    response = server.http.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "a"}],
            "tools": tools,
            "tool_choice": "required",
        },
    )
    assert_refused(response, "tools[1].function.parameters", why)
    # The expression once, and as a tool's schema in the list of tools, and alone.
    assert (core(server).pid, num_lost(server)) == (before[0], before[1] + 3)
    assert len(checkers(server)) <= 2


def test_row_21_a_mask_that_ends_the_core(server: Server) -> None:
    """The structure is known by then: its request is told, the other begins again, and nobody can
    ask for it again."""
    served(server, "sound")
    before_death = checkers(server)
    fields = {"prompt": "b", "max_tokens": 150, "ignore_eos": True, "seed": 1, "temperature": 1}
    alone = server.text(**fields)
    before = restarts(server)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(server.text, **fields)
        until(lambda: other.done() or server.metric("num_requests_running"))
        assert_refused(ask(server, "FALL"), "guided_regex", "ended the engine core")
        assert other.result() == alone
    until(lambda: healthy(server))
    assert restarts(server) == before + 1
    assert_refused(ask(server, "FALL"), "guided_regex", "ended the engine core")
    assert (restarts(server), checkers(server)) == (before + 1, before_death)


def test_row_21_a_mask_that_never_comes(server: Server) -> None:
    """The watchdog finds the core in it. It is the second death in a row that a structure is to
    blame for: those that are not known to be good have to wait now."""
    if not restarts(server):  # the test before this one ran elsewhere
        assert_refused(ask(server, "FALL"), "guided_regex", "ended the engine core")
        until(lambda: healthy(server))
    served(server, "known")
    before = restarts(server)
    began = time.monotonic()
    assert_refused(ask(server, "STALL"), "guided_regex", "ended the engine core")
    assert time.monotonic() - began >= float(STEP_TIMEOUT)
    until(lambda: healthy(server))
    assert restarts(server) == before + 1
    served(server, "known")
    refused = ask(server, "unknown")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "structure_unavailable"
    assert refused.headers["retry-after"]


@pytest.mark.slow  # `test_ranks` ends ranks, and a mask ends the core above
@pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own")
def test_row_21_a_mask_that_ends_another_rank(tiny_model: Path, tmp_path: Path) -> None:
    """The core ends with it, and tells how: so the structure is known, and not taken again."""
    with deadly_server(tiny_model, tmp_path, *BLOCKS, "--tensor-parallel-size", "2") as server:
        canary = server.text()
        assert_refused(ask(server, "STUMBLE"), "guided_regex", "ended the engine core")
        until(lambda: healthy(server))
        assert_refused(ask(server, "STUMBLE"), "guided_regex", "ended the engine core")
        assert restarts(server) == 1
        assert_unharmed(server, canary)
