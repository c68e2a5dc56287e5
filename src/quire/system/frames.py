"""Frames between two processes that share a socket pair.

No name leads to the pair, so that no third process can send frames. A frame is its length in four
bytes, little-endian, and then its bytes. A large one may be a file in memory: the length `_IN_FILE`
with its descriptor. So the receiver copies nothing, and no frame behind it waits until the reader
has emptied the socket's buffer many times.
"""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import os
import select
import socket
import threading

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18
_LARGE = 1 << 20
MOST_BYTES = 2**30
"""Length of the longest frame. A longer one ends the connection before memory is taken for it."""
_IN_FILE = 2**32 - 1
_RIGHTS_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)

Frame = bytes | memoryview


class ClosedError(Exception):
    """The other end is closed, and all its frames have been received."""


class FrameSocket:
    """One end of the pair.

    Frames arrive whole and in order. `send` may be called from several threads, `receive` from one.

    Args:
        files: send large frames as files. The other end must have descriptors left.
    """

    def __init__(self, end: socket.socket, *, files: bool = False) -> None:
        self._socket = end
        self._sends_files = files
        self._received = bytearray()
        self._files: list[int] = []
        self._unsent: list[tuple[bytes, Frame]] = []
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None

    @classmethod
    def pair(cls) -> tuple[FrameSocket, socket.socket]:
        """Return one end, and the socket of the other end for a child process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours, files=True), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: Frame) -> None:
        """Send without waiting. A thread sends a large frame, and what the socket cannot take.

        If the other end is closed, the frame is dropped: the owner of that process reports its end.

        Raises:
            OverflowError: the frame is longer than `MOST_BYTES`.
        """
        if (size := len(frame)) > MOST_BYTES:
            raise OverflowError(f"a frame of {size} bytes; at most {MOST_BYTES} are allowed")
        length = size.to_bytes(_LENGTH_BYTES, "little")
        with self._lock:
            if self._unsent:
                self._unsent.append((length, frame))
                return
            sent = 0
            if not self._goes_in_file(frame):
                try:
                    sent = self._socket.sendmsg((length, frame), (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    return
            if sent < len(length) + size:
                rest = (b"", (length + frame)[sent:]) if sent else (length, frame)
                self._unsent.append(rest)
                self._sender = threading.Thread(target=self._send_rest, name="frames", daemon=True)
                self._sender.start()

    def receive(self, *, wait: bool) -> list[Frame]:
        """Return the frames that have arrived; with `wait`, at least one.

        Raises:
            ClosedError: see there. Also if a frame is too long.
            OSError: this process has no descriptor left for a frame in a file.
        """
        while True:
            try:
                how = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
                data, rights, flags, _ = self._socket.recvmsg(_READ_BYTES, _RIGHTS_BYTES, how)
            except BlockingIOError:
                return []
            except OSError:  # the other end was closed before it had read everything
                data, rights, flags = b"", [], 0
            if not data:
                raise ClosedError
            for _, _, descriptor in rights:
                self._files += array.array("i", descriptor)
            if flags & socket.MSG_CTRUNC:  # else its length would be taken for 4 GiB to come
                raise OSError(
                    errno.EMFILE,
                    "no file descriptor is left for a large message; raise the limit (ulimit -n)",
                )
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
        while self._files:
            os.close(self._files.pop())

    def _goes_in_file(self, frame: Frame) -> bool:
        return self._sends_files and len(frame) >= _LARGE

    def _complete(self) -> list[Frame]:
        """Take complete frames from the received bytes."""
        frames, begin, size = list[Frame](), 0, len(self._received)
        while begin + _LENGTH_BYTES <= size:
            first = begin + _LENGTH_BYTES
            length = int.from_bytes(self._received[begin:first], "little")
            if length == _IN_FILE and self._files:
                frames.append(_content(self._files.pop(0)))
                begin = first
                continue
            if length > MOST_BYTES:
                raise ClosedError
            end = first + length
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
                length, frame = self._unsent[0]
            try:
                if not (length and self._goes_in_file(frame) and self._send_file(frame)):
                    self._socket.sendall(length + frame)
            except OSError:  # an end is closed
                with self._lock:
                    self._unsent.clear()
                return
            with self._lock:
                del self._unsent[0]
                if not self._unsent:
                    return

    def _send_file(self, frame: Frame) -> bool:
        """Send a frame as a file; return False if there is no memory or descriptor for one."""
        try:
            with open(os.memfd_create("frame", os.MFD_CLOEXEC), "wb", buffering=0) as file:
                while frame:
                    frame = memoryview(frame)[file.write(frame) :]
                with memoryview(array.array("i", [file.fileno()])) as descriptor:
                    head = _IN_FILE.to_bytes(_LENGTH_BYTES, "little")
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)
                    return bool(self._socket.sendmsg((head,), (rights,)))
        except OSError:
            return False


def _content(file: int) -> memoryview:
    """Return a frame that came as a file, and close this."""
    try:
        return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(file)
