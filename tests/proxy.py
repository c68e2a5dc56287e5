"""A network between two machines on the loopback, which a test reads, alters and cuts."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress

SECONDS = 60.0


class Proxy:
    """What lies between two machines. After `cut` nothing passes on connections made before.

    Attributes:
        port: where it listens.
        passed: all bytes that have come.
        alters: change what passes from now on.
    """

    def __init__(self, port: int) -> None:
        self._far = port
        self._drops = threading.Event()
        self._open = ExitStack()
        self._listener = self._open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._ends = False
        self.passed: list[bytes] = []
        self.alters = False
        self._thread.start()

    def _accept(self) -> None:
        while not self._ends:
            try:
                near = self._open.enter_context(self._listener.accept()[0])
            except TimeoutError:
                continue
            near.settimeout(None)
            try:
                far = socket.create_connection(("127.0.0.1", self._far))
            except ConnectionRefusedError:
                near.close()
                continue
            self._open.enter_context(far)
            for ends in ((near, far), (far, near)):
                args = (*ends, self._drops)
                threading.Thread(target=self._pass, args=args, daemon=True).start()

    def _pass(self, come: socket.socket, go: socket.socket, drops: threading.Event) -> None:
        with suppress(OSError):
            while data := come.recv(2**16):
                self.passed.append(data)
                if self.alters:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                if not drops.is_set():
                    go.sendall(data)
        if not drops.is_set():
            for end in (come, go):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._drops.set()
        self._drops = threading.Event()

    def close(self) -> None:
        self._ends = True
        self._thread.join(SECONDS)
        self._open.close()
