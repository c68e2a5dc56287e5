"""`quire serve`: bind, load, listen, and stop cleanly.

The port is bound before the engine is made, and listens once the model can answer, so that
`/health` is never too early. After SIGTERM or SIGINT, `/ready` returns 503 and new requests are
refused. Requests in progress may finish within --shutdown-timeout; then they get an error event,
and the program exits with 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.configure import Configured, configure
from quire.profile.devices import devices
from quire.resolve.arguments import EngineArgs
from quire.server.adapters import ServedAdapters
from quire.server.app import create_app
from quire.server.http.listener import bind_error
from quire.server.http.protocol import Site
from quire.server.http.server import BACKLOG, HttpServer
from quire.server.http.tls import Tls, live_context
from quire.server.options import AppOptions
from quire.server.tool_results import reads_images
from quire.server.tools.table import choose_parsers
from quire.system.heap import share_one_heap
from quire.system.records import dataclass

MAX_CONNECTIONS = 16_384
"""Connections at once; fewer if the system limits open files."""
RESERVED_FILES = 128
LAST_WRITES_SECONDS = 5
"""How long connections may write their last data after all requests have ended. Less if the
shutdown's timeout ends before, but at least a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(AppOptions):
    """Settings of the server; see `cli.serve` for the flags."""

    model_names: tuple[str, ...] = ()
    """Names for clients; if empty, the model as the user wrote it."""
    shutdown_timeout: float = 25.0
    """Seconds for requests in progress after a signal."""
    tls: Tls | None = None
    lora_modules: tuple[tuple[str, str], ...] = ()
    """Names and folders of adapters to serve."""
    lora_dir: Path | None = None
    """Folder from which clients may load adapters; None means they may not."""


def serve(
    args: EngineArgs,
    options: ServeOptions,
    listener: socket.socket,
    began: float,
    configured: Configured | None = None,
) -> int:
    """Serve until a signal; return the exit status.

    Args:
        listener: the result of `bind`.
        began: when the program started, on the monotonic clock.
        configured: see `AsyncLLM.start`.

    Raises:
        QuireError: the server cannot start.
    """
    choose_parsers(None, options.tool_call_parser, options.reasoning_parser)
    tls = live_context(options.tls) if options.tls else None
    _raise_file_limit()
    share_one_heap()
    configured = configured or configure(args)
    return asyncio.run(_serve(args, options, listener, began, configured, tls))


async def _serve(
    args: EngineArgs,
    options: ServeOptions,
    listener: socket.socket,
    began: float,
    configured: Configured,
    tls: ssl.SSLContext | None,
) -> int:
    engine = await _start_unless_stopped(args, configured)
    if engine is None:
        return 0
    try:
        started = time.monotonic()
        names = options.model_names or (args.model,)
        adapters = ServedAdapters(options.lora_dir)
        for name, path in options.lora_modules:
            await adapters.load(engine, name, path)
        app = create_app(
            engine, names, options, devices=devices(), adapters=adapters,
            tool_images=await reads_images(engine, options.chat_template),
        )  # fmt: skip
        server = HttpServer(Site(app, _max_connections()), tls)
        # Exclude all present objects from collection. A full collection then takes microseconds
        # instead of 25 ms, in which no stream is served.
        gc.freeze()

        draining: asyncio.Task[None] | None = None

        async def drain() -> None:
            deadline = time.monotonic() + options.shutdown_timeout
            await engine.drain(options.shutdown_timeout)
            server.stop(min(max(deadline - time.monotonic(), 1), LAST_WRITES_SECONDS))

        def stop() -> None:
            nonlocal draining
            if draining is not None:
                server.stop()
                return
            app.state.feed.close()  # its streams would never end
            draining = asyncio.create_task(drain())

        with _on_signals(stop):
            try:
                listener.listen(BACKLOG)
            except OSError as error:  # two processes can bind the port, only one can listen
                address = listener.getsockname()
                host, port = (address, 0) if isinstance(address, str) else address[:2]
                raise bind_error(host, port, error) from None
            now = time.monotonic()
            phases = {"program": configured.began - began, **engine.phases, "http": now - started}
            url = _url(listener, "https" if options.tls else "http")
            _announce(url, names[0], engine, phases, now - began)
            await server.serve(listener)
    finally:
        engine.shutdown()
    return 0


async def _start_unless_stopped(args: EngineArgs, configured: Configured) -> AsyncLLM | None:
    """Return the engine, or None if a signal came while it loaded."""
    task = asyncio.ensure_future(AsyncLLM.start(args, configured))
    with _on_signals(task.cancel):
        try:
            return await task
        except asyncio.CancelledError:
            return None


@contextlib.contextmanager
def _on_signals(action: Callable[[], object]) -> Generator[None, None, None]:
    """Call `action` on SIGTERM and SIGINT, in the event loop."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _announce(
    url: str, model: str, engine: AsyncLLM, phases: dict[str, float], total: float
) -> None:
    """Print the start-up timeline, whose phases add up to the wall time, and the address."""
    phases = {**phases, "other": total - sum(phases.values()), "start-up": total}
    width = max(map(len, phases))
    lines = [f"  {name:<{width}}  {seconds:6.2f} s" for name, seconds in phases.items()]
    lines += [f"  in parallel: {name} {seconds:.2f} s" for name, seconds in engine.beside.items()]
    lines.append(f"Serving {model} (context {engine.max_model_len} tokens) on {url}/v1")
    with contextlib.suppress(OSError):  # serve even if the log cannot be written
        print("\n".join(lines), file=sys.stderr, flush=True)


def _url(listener: socket.socket, scheme: str) -> str:
    address = listener.getsockname()
    if isinstance(address, str):
        return f"{scheme}+unix://{address}:"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _raise_file_limit() -> None:
    """Raise the limit on open files, and so on connections, to the system's maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _max_connections() -> int:
    """Return the limit on open files, minus those that the engine needs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(max(files - RESERVED_FILES, files // 2), MAX_CONNECTIONS)
