"""`quire route`: one address for several servers."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError
from quire.resolve.field_flags import parse_size
from quire.resolve.flags import Flags
from quire.server.http import listener

if TYPE_CHECKING:
    from quire.server.route.upstream import Upstream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the servers' addresses and the router's own to `parser`."""
    add = Flags(parser)
    add(
        "--replica",
        None,
        "address of a server, such as http://10.0.0.2:8000; repeat it for each",
        action="append",
        required=True,
        metavar="URL",
    )
    add("--host", "127.0.0.1", "address to listen on")
    add("--port", 8080, "port to listen on; 0 is any free one", type=int)
    add("--max-body-bytes", "32MiB", "largest request body", type=parse_size)


def run(namespace: argparse.Namespace) -> int:
    """Route requests until a signal; return the exit status.

    Raises:
        ConfigError: an address is wrong, occurs twice, or cannot be bound.
    """
    from quire.core.log import setup_logging
    from quire.server.route.upstream import Upstream

    setup_logging()
    if not 0 <= namespace.port <= 65535:
        raise ConfigError(f"--port is {namespace.port}; ports are 0 to 65535.", param="--port")
    upstreams = [Upstream(url) for url in namespace.replica]
    urls = [upstream.url for upstream in upstreams]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(
                f"--replica {url} is given {urls.count(url)} times.",
                fix="Name each server once.",
                param="--replica",
            )
    with listener.bind(namespace.host, namespace.port) as bound:
        asyncio.run(_route(bound, upstreams, namespace.max_body_bytes))
    return 0


async def _route(bound: socket.socket, upstreams: list[Upstream], max_body_bytes: int) -> None:
    from quire.server.http.protocol import Site
    from quire.server.http.server import BACKLOG, HttpServer
    from quire.server.route.proxy import LAST_SECONDS, Router, create_router_app

    router = Router(upstreams, max_body_bytes)
    server = HttpServer(Site(create_router_app(router)))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop, LAST_SECONDS)
    async with router.lifespan():
        bound.listen(BACKLOG)
        host, port = bound.getsockname()[:2]
        count = len(upstreams)
        print(
            f"Routing to {count} server{'s' if count > 1 else ''} on http://{host}:{port}/v1",
            file=sys.stderr,
            flush=True,
        )
        await server.serve(bound)
