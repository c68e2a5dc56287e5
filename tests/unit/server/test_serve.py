"""Where the server listens, and where it refuses to."""

import socket

import pytest

from quire.core.config import EngineArgs
from quire.core.errors import ConfigError
from quire.server.serve import ServeOptions, bind, serve


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


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind(host, 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_open_to_the_network_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-no-key"):
        serve(EngineArgs(), ServeOptions(host=host), 0.0)
