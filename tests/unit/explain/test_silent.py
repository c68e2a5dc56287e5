"""A server that does not answer gets a verdict from the system's own figures."""

from __future__ import annotations

import errno
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from quire.cli.explain import SilentServerError, ask
from quire.core.errors import QuireError
from quire.explain.host import HostUse, unread
from quire.explain.silent import listener, verdict
from quire.explain.surroundings import Surroundings

BUSY = HostUse(2.0, 4, busy=7.5, own=0.1, steal=0.0, waited=1.8)
IDLE = HostUse(2.0, 4, busy=0.2, own=0.1, steal=0.0, waited=0.0)


def cause(
    states: dict[int, str], use: HostUse | None, around: Surroundings | None = None
) -> str | None:
    found = verdict(7, states, use, around or Surroundings())
    return found.cause if found else None


def test_each_reason_is_named() -> None:
    assert cause({7: "S", 8: "T"}, BUSY) == "stopped"
    assert cause({7: "R"}, BUSY) == "starved"
    assert cause({7: "D"}, IDLE, Surroundings(swap_rate=1e8, disk_wait=1.9)) == "swapping"
    full = Surroundings(open_files=1024, most_files=1024)
    assert cause({7: "S"}, IDLE, full) == "open_files"
    assert cause({7: "R"}, IDLE, Surroundings(debugging=["-X dev"])) == "python_debugging"
    assert cause({7: "S"}, IDLE) is None
    assert cause({7: "S"}, None) is None


def test_the_text_has_the_figures() -> None:
    found = verdict(7, {7: "R"}, BUSY, Surroundings())
    assert "waited 90% of the time for a core" in found.text
    assert "used 3.7 of 4 CPUs" in found.text


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs /proc")
def test_the_process_behind_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) is None


@pytest.mark.parametrize(("status", "silent"), [(500, True), (503, True), (404, False)])
def test_who_fails_to_answer_is_silent_and_who_refuses_is_not(status: int, silent: bool) -> None:
    """Seen: a server without free files answered 500, and got no verdict."""

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(QuireError, match=f"answered {status}") as caught:
            ask(f"http://127.0.0.1:{server.server_port}", 0.1)
        thread.join()
    assert isinstance(caught.value, SilentServerError) == silent


def test_without_free_files_nothing_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(_: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", no_file)
    assert unread() == []
