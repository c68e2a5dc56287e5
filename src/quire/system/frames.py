"""Frames between two processes that share a socket pair.

No name leads to the pair, so that no third process can send frames. A frame is its length in four
bytes, little-endian, and then its bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18


class ClosedError(Exception):
    """The other end is closed, and all its frames have been received."""


class FrameSocket:
    """One end of the pair.

    Frames arrive whole and in order. `send` may be called from several threads, `receive` from one.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._unsent: list[bytes] = []
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None

    @classmethod
    def pair(cls) -> tuple[FrameSocket, socket.socket]:
        """Return one end, and the socket of the other end for a child process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send without waiting. If the socket's buffer is full, a thread sends the rest.

        If the other end is closed, the frame is dropped: the owner of that process reports its end.

        Raises:
            OverflowError: the frame has 4 GiB or more.
        """
        length = len(frame).to_bytes(_LENGTH_BYTES, "little")
        with self._lock:
            if self._unsent:
                self._unsent += (length, frame)
                return
            try:
                sent = self._socket.sendmsg((length, frame), (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent < len(length) + len(frame):
                self._unsent.append((length + frame)[sent:])
                self._sender = threading.Thread(target=self._send_rest, name="frames", daemon=True)
                self._sender.start()

    def receive(self, *, wait: bool) -> list[bytes]:
        """Return the frames that have arrived; with `wait`, at least one.

        Raises:
            ClosedError: see there.
        """
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:  # the other end was closed before it had read everything
                data = b""
            if not data:
                raise ClosedError
            self._received += data
            if (frames := self._complete()) or not wait:
                return frames

    def has_input(self) -> bool:
        """Return whether `receive` would return at once."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self, linger: float = 0.0) -> None:
        """Close this end; wait at most `linger` seconds for unsent frames. Harmless if repeated."""
        if self._sender is not None:
            self._sender.join(linger)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends a `send` of the thread
        self._socket.close()

    def _complete(self) -> list[bytes]:
        """Take complete frames from the received bytes."""
        frames, begin, size = [], 0, len(self._received)
        while begin + _LENGTH_BYTES <= size:
            first = begin + _LENGTH_BYTES
            end = first + int.from_bytes(self._received[begin:first], "little")
            if end > size:
                break
            frames.append(bytes(self._received[first:end]))
            begin = end
        del self._received[:begin]
        return frames

    def _send_rest(self) -> None:
        """Send what `send` left, in this thread; end when nothing is left."""
        while True:
            with self._lock:
                data = b"".join(self._unsent)
                self._unsent = [data]
            try:
                self._socket.sendall(data)
            except OSError:  # an end is closed
                with self._lock:
                    self._unsent.clear()
                return
            with self._lock:
                self._unsent.pop(0)
                if not self._unsent:
                    return
