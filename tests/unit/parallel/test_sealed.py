"""Encrypted connections between machines: what passes, who is refused, and what an end does."""

from __future__ import annotations

import os
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.parallel import handshake
from quire.parallel.handshake import Arrival, Doorman, HandshakeError, dial
from tests.certificate import write_pem
from tests.e2e.serving import until
from tests.proxy import Proxy

KEY = b"a key of the tests, long enough"
SECONDS = 60.0
REFUSED_WITHIN = 1.0


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pem")
    return write_pem(folder / "one.pem"), write_pem(folder / "two.pem")


@pytest.fixture(autouse=True)
def sealed(pems: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_TLS", pems[0])


@contextmanager
def connected(frame: bytes = b"hello") -> Iterator[tuple[socket.socket, Arrival, Proxy]]:
    """Both ends of a connection, and the network between them."""
    with closing(Doorman("127.0.0.1", 0, KEY)) as doorman:
        proxy = Proxy(doorman.address[1])
        near = dial(("127.0.0.1", proxy.port), KEY, frame, time.monotonic() + SECONDS)
        arrival = doorman.next(SECONDS)
        assert isinstance(arrival, Arrival)
        with near, arrival.connection as far:
            for end in (near, far):
                end.settimeout(SECONDS)
            yield near, arrival, proxy
        proxy.close()


def received(end: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (more := end.recv(2**16)):
        data += more
    return bytes(data)


@pytest.mark.parametrize("encrypts", [True, False])
def test_bytes_pass_in_both_directions_and_only_the_machines_can_read_them(
    monkeypatch: pytest.MonkeyPatch, *, encrypts: bool
) -> None:
    """The first frame, and more than all buffers hold, both ways at once."""
    if not encrypts:
        monkeypatch.delenv("QUIRE_CLUSTER_TLS")
    prompt, large = b"a prompt that nobody else may read", random.Random(1).randbytes(2**21)
    with connected(prompt) as (near, arrival, proxy):
        assert arrival.frame == prompt
        far = arrival.connection
        assert near.getsockname()[0] == "127.0.0.1"
        senders = [
            threading.Thread(target=end.sendall, args=[large + prompt]) for end in (near, far)
        ]
        for sender in senders:
            sender.start()
        for end in (far, near):
            assert received(end, len(large + prompt)) == large + prompt
        for sender in senders:
            sender.join(SECONDS)
        passed = b"".join(proxy.passed)
        assert len(passed) > 2 * len(large)
        assert ((prompt in passed) or (large[:64] in passed)) is not encrypts


@pytest.mark.parametrize("dialler_ends", [True, False])
def test_an_end_comes_after_all_that_was_sent_and_leaves_nothing(*, dialler_ends: bool) -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with connected() as (near, arrival, _):
        ends = near, arrival.connection
        ending, other = ends if dialler_ends else reversed(ends)
        sender = threading.Thread(target=lambda: (ending.sendall(bytes(2**21)), ending.close()))
        sender.start()
        assert received(other, 2**22) == bytes(2**21)
        assert other.recv(1) == b""
        sender.join(SECONDS)
    end = time.monotonic() + SECONDS
    while (threading.active_count(), len(os.listdir("/proc/self/fd"))) > before:
        assert time.monotonic() < end
        time.sleep(0.02)


def refusals(
    pem: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> tuple[str, str]:
    """What a machine with another certificate, or none, and the listener say."""
    caplog.clear()
    with closing(Doorman("127.0.0.1", 0, KEY)) as doorman:
        if pem is None:
            monkeypatch.delenv("QUIRE_CLUSTER_TLS", raising=False)
        else:
            monkeypatch.setenv("QUIRE_CLUSTER_TLS", pem)
        began = time.monotonic()
        with pytest.raises(HandshakeError) as refused:
            dial(doorman.address, KEY, b"hello", began + SECONDS)
        until(lambda: caplog.messages)
        assert time.monotonic() < began + REFUSED_WITHIN
    return str(refused.value), caplog.messages[0]


def test_another_certificate_is_refused_by_name(
    pems: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for said in refusals(pems[1], monkeypatch, caplog):
        assert "it has another certificate in QUIRE_CLUSTER_TLS, or an invalid one: " in said


def test_a_machine_that_does_not_encrypt_is_refused_by_name(
    pems: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has, lacks = "it has QUIRE_CLUSTER_TLS, and this ma", "it has no QUIRE_CLUSTER_TLS, and this ma"
    dialler, listener = refusals(None, monkeypatch, caplog)
    assert dialler.startswith(has)
    assert lacks in listener
    dialler, listener = refusals(
        pems[0], monkeypatch, caplog
    )  # the listener read it when it had none
    assert dialler.startswith(lacks)
    assert has in listener


def test_another_key_is_named_before_certificates_are_compared() -> None:
    with (
        closing(Doorman("127.0.0.1", 0, KEY)) as doorman,
        pytest.raises(HandshakeError, match="another key"),
    ):
        dial(doorman.address, KEY + b"!", b"hello", time.monotonic() + SECONDS)


@pytest.mark.parametrize("dialler_trusts", [True, False])
def test_both_learn_that_one_of_them_refuses(
    pems: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    dialler_trusts: bool,
) -> None:
    """One end trusts both certificates. TLS 1.3 alone would tell the dialler later."""
    both = tmp_path / "both.pem"
    both.write_text(Path(pems[1]).read_text() + Path(f"{pems[0]}.crt").read_text())
    ends = [pems[0], str(both)]
    listens, dials = ends if dialler_trusts else reversed(ends)
    monkeypatch.setenv("QUIRE_CLUSTER_TLS", listens)
    for said in refusals(dials, monkeypatch, caplog):
        assert "QUIRE_CLUSTER_TLS" in said


def test_a_file_that_is_no_key_and_certificate_is_named(
    pems: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked for a password either."""
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-in", pems[0], "-aes256", "-passout", "pass:secret"]
    key = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert b"ENCRYPTED" in key
    locked.write_bytes(key + Path(f"{pems[0]}.crt").read_bytes())
    for name in (str(tmp_path / "missing.pem"), f"{pems[0]}.crt", os.devnull, str(locked)):
        monkeypatch.setenv("QUIRE_CLUSTER_TLS", name)
        with pytest.raises(ConfigError, match="cannot be read as a private key") as error:
            dial(("127.0.0.1", 1), KEY, b"", time.monotonic() + SECONDS)
        assert name in str(error.value)
        with pytest.raises(ConfigError):
            Doorman("127.0.0.1", 0, KEY)


def test_altered_bytes_end_one_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As does a machine that has the key, and sends garbage instead of TLS."""
    with connected() as (near, arrival, proxy):
        proxy.alters = True
        with suppress(OSError):
            near.sendall(b"x" * 100)
        assert received(arrival.connection, 1) == b""
        assert received(near, 1) == b""
    noise = random.Random(2)
    monkeypatch.setattr(handshake, "LOG_SECONDS", 0.0)
    caplog.clear()
    with closing(Doorman("127.0.0.1", 0, KEY)) as doorman:
        for number in range(1, 21):
            with proven(doorman) as stranger:
                stranger.sendall(noise.randbytes(noise.randrange(1, 400)))
                stranger.shutdown(socket.SHUT_WR)
                until(lambda number=number: len(caplog.messages) == number)
        with dial(doorman.address, KEY, b"hello", time.monotonic() + SECONDS):
            arrival = doorman.next(SECONDS)
        assert isinstance(arrival, Arrival)
        arrival.connection.close()


def proven(doorman: Doorman) -> socket.socket:
    """A connection whose other end has seen the key, and now expects TLS."""
    stranger, nonce = socket.create_connection(doorman.address, SECONDS), os.urandom(32)
    stranger.sendall(handshake.TLS_MAGIC + nonce)
    other = received(stranger, 40)[8:]
    stranger.sendall(handshake._proof(KEY, b"dialler", nonce, other))
    received(stranger, 32)
    return stranger


def test_nothing_older_than_tls_1_3_is_accepted(
    pems: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=pems[0])
    context.load_cert_chain(pems[0])
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with closing(Doorman("127.0.0.1", 0, KEY)) as doorman:
        with (
            proven(doorman) as stranger,
            pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
        ):
            context.wrap_socket(stranger)
        until(lambda: "unsupported protocol" in caplog.text)
