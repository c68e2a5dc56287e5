"""Addresses of images: what is read, and what a server must not read."""

from __future__ import annotations

import asyncio
import base64
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from quire.core.errors import InvalidRequestError
from quire.frontend.images import fetch, names
from quire.frontend.images.fetch import Media, is_public
from quire.frontend.images.prepare import MAX_BYTES
from quire.frontend.workers.pool import CLIENT
from tests.unit.frontend.test_core_client import until

LOOPS = [
    "127.0.0.1", "127.1", "0.0.0.0", "0", "2130706433", "0x7f000001", "0177.0.0.1", "localhost",
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1",
    "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]",
    "[fc00::1]", "[ff02::1]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]", "[2001:db8::1]",
]  # fmt: skip
"""Hosts in private networks, in every spelling that a resolver takes."""
OTHERS = [
    "http://good.test@169.254.169.254/", "http://169.254.169.254#@good.test/",
    "http://good.test:80@10.0.0.1/", "http://good.test.evil.test/", "http://evil.test/good.test",
    "http://good.test\\@evil.test/", "http://good.test%00.evil.test/", "http://a b/", "ftp://good.test/",
    "gopher://good.test/", "http:///", "//good.test/", "http://good.test:99999/", "http://ｇood.test/",
    "file:///etc/passwd", "file://evil.test/etc/passwd", "javascript:1", "good.test", "",
]  # fmt: skip
"""Addresses that are not of the one allowed host."""


def load(media: Media, address: Any) -> Any:
    try:
        return asyncio.run(media.load(address))
    finally:
        media.shutdown()


@pytest.mark.parametrize("host", LOOPS)
def test_private_hosts_are_refused_even_if_listed(host: str) -> None:
    media = Media(host.strip("[]"))
    with pytest.raises(InvalidRequestError, match=r"private network|did not send") as caught:
        load(media, f"http://{host}:9/a.png")
    assert caught.value.param == "image"


@pytest.mark.parametrize("address", OTHERS)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="The image cannot be read"):
        load(Media("good.test"), address)


def test_nothing_is_fetched_without_a_list() -> None:
    with pytest.raises(InvalidRequestError, match="--allowed-media-domains"):
        load(Media(), "https://good.test/a.png")


def test_public_addresses() -> None:
    assert all(map(is_public, ("8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808")))
    assert not any(map(is_public, ("10.1.1.1", "::1", "fe80::1%eth0", "fec0::1")))


def test_data_urls() -> None:
    for address in ("data:image/png;base64,QUJD", "DATA:;base64,QUJD", "data:,ABC"):
        assert load(Media(), address) == b"ABC"
    for body in ("QUJDRA==", "QUJDRA", "QUJD\r\nRA==\n", " QUJD%0ARA"):
        assert load(Media(), f"data:image/png;base64,{body}") == b"ABCD"
    for wrong in ("data:image/png;base64", "data:image/png;base64,Q", "data:;base64,Ä"):
        with pytest.raises(InvalidRequestError):
            load(Media(), wrong)
    long = base64.b64encode(bytes(MAX_BYTES + 1)).decode()
    with pytest.raises(InvalidRequestError, match="larger than"):
        load(Media(), f"data:;base64,{long}")


def test_files(tmp_path: Path) -> None:
    folder, secret = tmp_path / "open", tmp_path / "secret"
    folder.mkdir()
    (folder / "a b.png").write_bytes(b"ABC")
    secret.write_bytes(b"no")
    (folder / "link").symlink_to(secret)
    media = Media(folder=str(folder))
    assert load(media, f"file://{folder}/a%20b.png") == b"ABC"
    for name in ("../secret", "%2e%2e/secret", "link", "", "missing", "a%00"):
        with pytest.raises(InvalidRequestError, match=r"not below|regular|no such"):
            load(Media(folder=str(folder)), f"file://{folder}/{name}")
    with pytest.raises(InvalidRequestError, match="Start with --allowed-local-media-path"):
        load(Media(), f"file://{secret}")


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local server stands for good.test, whose first address does not answer."""
    hosts = {"good.test": ["127.0.0.2", "127.0.0.1"]}

    def look_up(host: str, port: None, *_: Any, **__: Any) -> list[Any]:
        found = hosts.get(host, [host])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(names.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(fetch, "is_public", lambda address: address.startswith("127.0.0."))


@pytest.mark.usefixtures("good")
def test_fetches_follow_few_redirects_and_check_each() -> None:
    """The redirect to 10.0.0.1 is checked as ever."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        place = {"/to": "/image", "/out": "http://10.0.0.1/", "/loop": "/loop"}.get(handler.path)
        handler.send_response(302 if place else 404 if handler.path == "/no" else 200)
        if place:
            handler.send_header("Location", place)
        handler.end_headers()
        if handler.path == "/image":
            handler.wfile.write(b"ABC")
        elif handler.path == "/long":
            handler.wfile.write(bytes(MAX_BYTES + 1))

    with serving(answer) as port:
        base = f"http://good.test:{port}"
        for path in ("/image", "/to"):
            assert load(Media("good.test"), base + path) == b"ABC"
        for path, why in {
            "/out": "not among", "/loop": "3 redirects", "/no": "status 404", "/long": "larger",
        }.items():  # fmt: skip
            with pytest.raises(InvalidRequestError, match=why):
                load(Media("good.test"), base + path)


@pytest.mark.usefixtures("good")
async def test_a_host_that_drips_holds_no_thread_and_no_other_client() -> None:
    """Its headers never end, so no timeout of a socket does. A client fetches four at a time."""
    slow = threading.Semaphore(0)

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        if handler.path == "/image":
            handler.end_headers()
            handler.wfile.write(b"ABC")
            return
        slow.release()
        with suppress(OSError):
            while True:
                handler.wfile.write(b"a")
                time.sleep(0.005)

    media = Media("good.test")
    with serving(answer) as port:
        base = f"http://good.test:{port}"
        drips = [asyncio.create_task(media.load(f"{base}/slow")) for _ in range(9)]
        for _ in range(4):
            await asyncio.to_thread(slow.acquire, timeout=60)
        token = CLIENT.set("other")
        assert await media.load(f"{base}/image") == b"ABC"
        CLIENT.reset(token)
        assert not any(task.done() for task in drips)
        assert not slow.acquire(blocking=False)
        for task in drips:
            task.cancel()
        await asyncio.wait(drips)
        await until(lambda: media._threads.num_abandoned == 0)
    media.shutdown()


@pytest.mark.usefixtures("good")
async def test_a_client_that_leaves_and_comes_again_holds_no_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing cuts a look-up of a name before its time is over."""
    begun, go, connect = threading.Semaphore(0), threading.Event(), fetch._connect

    def stuck(host: str, port: int, until: float) -> socket.socket:
        if port == 1:
            begun.release()
            go.wait(60)
            raise OSError
        return connect(host, port, until)

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"ABC")

    monkeypatch.setattr(fetch, "_connect", stuck)
    media = Media("good.test")
    with serving(answer) as port:
        slow = [asyncio.create_task(media.load("http://good.test:1/")) for _ in range(4)]
        for _ in slow:
            await asyncio.to_thread(begun.acquire, timeout=60)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        again = [asyncio.create_task(media.load("http://good.test:1/")) for _ in range(4)]
        await asyncio.sleep(0)
        CLIENT.set("other")
        assert await media.load(f"http://good.test:{port}/") == b"ABC"
        go.set()
        await asyncio.wait(again)
        await until(lambda: not media._turns._held)
    media.shutdown()


@pytest.mark.usefixtures("good")
def test_a_host_with_many_addresses_has_the_whole_time_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float | None] = []
    connect = fetch._connect

    class Connected(socket.socket):
        def sendall(self, *data: Any) -> None:
            given.append(self.gettimeout())
            super().sendall(*data)

    def connected(host: str, port: int, until: float) -> socket.socket:
        raw = connect(host, port, until)
        found = Connected(fileno=raw.detach())
        found.settimeout(0.001)
        return found

    monkeypatch.setattr(fetch, "_connect", connected)
    with (
        serving(lambda handler: handler.send_error(404)) as port,
        pytest.raises(InvalidRequestError, match="status 404"),
    ):
        load(Media("good.test"), f"http://good.test:{port}/")
    assert given[0] > fetch.SECONDS / 2


async def test_a_look_up_that_never_ends_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), list[str]()

    def stuck(host: str, *_: Any, **__: Any) -> list[Any]:
        begun.append(host)
        go.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(names.socket, "getaddrinfo", stuck)
    monkeypatch.setattr(fetch, "SECONDS", 0.05)
    media = Media("good.test")
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match=r"within 0\.05 s|TimeoutError"):
            await media.load("http://good.test/")
        await until(lambda: not media._turns._held)  # the fetch's thread is free
    assert begun == ["good.test"]
    go.set()
    await until(lambda: not fetch._NAMES._begun)
    with pytest.raises(InvalidRequestError, match="gaierror"):
        await media.load("http://good.test/")
    media.shutdown()


def test_a_look_up_whose_thread_does_not_start_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no more threads")))
        found = names.Names()
        with pytest.raises(RuntimeError, match="no more threads"):
            found.addresses("127.0.0.1", 1.0)
    assert found.addresses("127.0.0.1", 10.0) == ["127.0.0.1"]


@pytest.mark.usefixtures("good")
async def test_what_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.05)
    media, done = Media("good.test"), threading.Event()
    with serving(lambda _: done.wait(60) and None) as port:
        with pytest.raises(InvalidRequestError, match=r"within 0\.05 s|did not send it"):
            await media.load(f"http://good.test:{port}/")
        await until(lambda: media._threads.num_abandoned == 0)
        done.set()
    media.shutdown()
