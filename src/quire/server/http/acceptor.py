"""Accepts connections, also when no file descriptor is free."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import ssl
from contextlib import suppress

from quire.server.http.protocol import (
    MAX_SPARES,
    RECEIVE_SECONDS,
    SPARE_SECONDS,
    HttpProtocol,
    Site,
)

logger = logging.getLogger(__name__)

MAX_ACCEPTS = 64
"""Maximum connections to accept before other events are handled."""
PAUSE_SECONDS = 0.1
"""How long no connection is accepted after the system has refused one."""
LOG_SECONDS = 60.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class Acceptor:
    """Accepts the connections of a listening socket while it is open.

    asyncio's own server logs tens of thousands of tracebacks per second when no descriptor is
    free. This one closes an idle connection instead. If there is none, it gives up a descriptor
    that it holds in reserve, so that the client gets an answer.
    """

    def __init__(
        self, site: Site, listener: socket.socket, backlog: int, tls: ssl.SSLContext | None
    ) -> None:
        self._site = site
        self._listener = listener
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._reserve = list[int]()
        self._num_failed = 0
        self._logged = -LOG_SECONDS
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(backlog)
        self._fill_reserve()
        self._loop.add_reader(listener, self._accept_all)

    def close(self) -> None:
        """Close the listening socket; accepted connections go on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        while self._reserve:
            os.close(self._reserve.pop())

    def _accept_all(self) -> None:
        if len(self._reserve) < MAX_SPARES:
            self._fill_reserve()
        for _ in range(MAX_ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._is_awaited():  # Linux looks for a descriptor first
                    return
                self._count(error)
                if error.errno not in _EXHAUSTED or not self._accept_one_more():
                    self._wait()
                return
            self._serve(connection)

    def _is_awaited(self) -> bool:
        """Return whether a client waits to be accepted."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        return bool(poll.poll(0))

    def _accept_one_more(self) -> bool:
        """Make room for a connection; return whether the next attempt to accept may succeed."""
        if self._site.close_idle():
            return True
        if not self._reserve:
            return False
        os.close(self._reserve.pop())
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            return isinstance(error, BlockingIOError)
        self._serve(connection, is_spare=True)
        return True

    def _serve(self, connection: socket.socket, *, is_spare: bool = False) -> None:
        task = self._loop.create_task(self._connect(connection, is_spare))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, is_spare: bool) -> None:
        connection.setblocking(False)
        handshake = SPARE_SECONDS if is_spare else RECEIVE_SECONDS
        with suppress(OSError):  # the client left, or speaks no TLS; the socket is closed
            await self._loop.connect_accepted_socket(
                lambda: HttpProtocol(self._site, is_spare=is_spare), connection, ssl=self._tls,
                ssl_handshake_timeout=handshake if self._tls else None,
            )  # fmt: skip

    def _wait(self) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept_all)

    def _fill_reserve(self) -> None:
        with suppress(OSError):
            while len(self._reserve) < MAX_SPARES:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _count(self, error: OSError) -> None:
        """Log the failure, at most once per `LOG_SECONDS`."""
        self._num_failed += 1
        now = self._loop.time()
        if now - self._logged < LOG_SECONDS:
            return
        logger.warning(
            "Could not accept a connection: %s (attempts since the last such line: %d). Idle "
            "connections are closed, or new ones get 503.%s",
            error.strerror, self._num_failed,
            " Raise the limit on open files (ulimit -n)." if error.errno == errno.EMFILE else "",
        )  # fmt: skip
        self._logged, self._num_failed = now, 0
