"""Where the server listens, and where it refuses to."""

import asyncio
import contextlib
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from quire.core.errors import ConfigError
from quire.server.http import exchange
from quire.server.http.listener import at_path, bind, bind_path, check_exposure
from quire.server.http.tls import Tls, live_context
from tests.certificate import write_pem
from tests.listening import listening


def test_bind_takes_any_free_port() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} of 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_a_port_can_be_taken_over_at_once() -> None:
    """A connection that is winding down does not hold the port of a server that is gone."""
    with bind("127.0.0.1", 0) as first:
        first.listen()
        address = first.getsockname()
        with socket.create_connection(address), first.accept()[0] as served:
            served.shutdown(socket.SHUT_RDWR)
    with bind(*address) as second:
        assert second.getsockname() == address


def test_ciphers_are_named_if_openssl_has_none_of_them(tmp_path: Path) -> None:
    pem = write_pem(tmp_path / "own.pem")
    live_context(Tls(pem, ciphers="ECDHE+AESGCM"))
    with pytest.raises(ConfigError, match="--ssl-ciphers 'RC5' selects no cipher"):
        live_context(Tls(pem, ciphers="RC5"))


def shown(server: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a server shows in a handshake."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there)  # without a name, as clients of an IP address
    theirs = server.wrap_bio(there, back, server_side=True)
    for end in (ours, theirs, ours):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ours.getpeercert(binary_form=True)


def test_new_certificates_are_used_once_they_are_complete(tmp_path: Path) -> None:
    pem = Path(write_pem(tmp_path / "own.pem"))
    other = Path(write_pem(tmp_path / "other.pem")).read_text()
    context = live_context(Tls(str(pem)))
    first = shown(context)
    assert first is not None
    pem.write_text(other[:100])
    assert shown(context) == first
    pem.write_text(other)
    second = shown(context)
    assert second not in (None, first)
    pem.unlink()
    assert shown(context) == second


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "quire.sock"
    with bind_path(str(path)) as listener:
        listener.listen()
        with pytest.raises(ConfigError, match="it is in use"):
            bind_path(str(path))
    assert path.is_socket(), "its process has ended without removing it"
    bind_path(str(path)).close()
    for wrong in (tmp_path, tmp_path / "no" / "quire.sock", tmp_path / ("a" * 200)):
        with pytest.raises(ConfigError, match="Cannot listen on --uds"):
            bind_path(str(wrong))
    with pytest.raises(ConfigError, match="--uds is empty"):
        bind_path("")


def test_the_path_of_a_server_that_loads_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "quire.sock")
    with bind_path(path) as first:
        with pytest.raises(ConfigError, match="it is in use"):
            bind_path(path)
        first.listen()
        with pytest.raises(ConfigError, match="it is in use"):
            bind_path(path)
    with bind_path(path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["quire.sock"]


def test_a_server_that_ends_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "quire.sock"
    with at_path(str(path)) as first:
        first.listen()
        first.close()
        second = at_path(str(path))
        listener = second.__enter__()
    assert path.is_socket()
    with listener:
        second.__exit__(None, None, None)
    assert not path.exists()


async def test_a_client_of_a_unix_socket_has_no_address(tmp_path: Path) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    path = str(tmp_path / "quire.sock")
    async with listening(app, bind_path(path)):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 204 ")
        writer.close()
    assert (scopes[0]["client"], scopes[0]["server"]) == (None, None)


async def test_others_run_between_the_parts_of_a_large_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "WRITTEN_BYTES", 1000)
    body = bytes(range(250)) * 10
    order: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        asyncio.get_running_loop().call_soon(order.append, "another")
        await send({"type": "http.response.body", "body": body})
        order.append("written")

    path = str(tmp_path / "quire.sock")
    async with listening(app, bind_path(path)):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).partition(b"\r\n\r\n")[2] == body
        writer.close()
    assert order == ["another", "written"]


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind(host, 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_open_to_the_network_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-no-key"):
        check_exposure(host, is_allowed=False)
    check_exposure(host, is_allowed=True)


async def test_an_idle_server_sleeps_and_tells_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def forbidden(delay: float) -> None:
        raise AssertionError(f"the server looks around every {delay} s")

    async with listening(app) as (_, address):
        with monkeypatch.context() as patch:
            patch.setattr("quire.server.http.server.asyncio.sleep", forbidden)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            head = (await reader.read()).decode()
        writer.close()
    date = re.search(r"^date: (.*)\r$", head, re.MULTILINE)
    age = datetime.now(UTC) - parsedate_to_datetime(date[1])
    assert timedelta(seconds=-2) < age < timedelta(seconds=60)
