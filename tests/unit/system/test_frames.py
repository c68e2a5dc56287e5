"""Frames over a socket pair: whole, in order, without waiting, until an end closes."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from quire.system.frames import MOST_BYTES, ClosedError, FrameSocket

Pair = tuple[FrameSocket, FrameSocket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = FrameSocket.pair()
    ends = ours, FrameSocket(theirs)
    yield ends
    for end in ends:
        end.close()


def received(end: FrameSocket, count: int) -> list[bytes]:
    frames: list[bytes] = []
    while len(frames) < count:
        frames += end.receive(wait=True)
    return frames


def test_frames_of_all_sizes_arrive_whole_and_in_order(pair: Pair) -> None:
    random = Random(0)
    sizes = [0, 1, 4, (1 << 18) - 4, 1 << 18, 3_000_001] + [random.randrange(99) for _ in range(99)]
    frames = [random.randbytes(size) for size in sizes]
    for frame in frames:  # more than the socket's buffer takes: nobody reads yet
        pair[0].send(frame)
    assert received(pair[1], len(frames)) == frames
    pair[1].send(b"back")
    assert received(pair[0], 1) == [b"back"]


def test_a_frame_in_parts_is_returned_once_it_is_complete() -> None:
    sender, receiver = socket.socketpair()
    with sender:
        end = FrameSocket(receiver)
        assert end.receive(wait=False) == []
        assert not end.has_input()
        data = b"\3\0\0\0abc\0\0\0\0\1\0\0\0d"
        for index in range(len(data)):
            sender.send(data[index : index + 1])
            assert end.has_input()
            expected = {6: [b"abc"], 10: [b""], 15: [b"d"]}.get(index, [])
            assert end.receive(wait=False) == expected
        end.close()


def test_sending_never_waits_for_the_reader(pair: Pair) -> None:
    for _ in range(64):
        pair[0].send(bytes(1 << 20))
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("frames") == 1
    assert received(pair[1], 64) == [bytes(1 << 20)] * 64
    pair[0].send(b"last")
    assert received(pair[1], 1) == [b"last"]


def test_a_large_frame_to_a_core_is_read_in_place_and_delays_none(pair: Pair) -> None:
    frames = [b"first", bytes(range(256)) * 40_000, b"behind"]
    for sender, receiver, most, kind in ((*pair, 9, memoryview), (*pair[::-1], 999, bytes)):
        for frame in frames:
            sender.send(frame)
        found, reads = list[bytes | memoryview](), 0
        while len(found) < len(frames):
            found += receiver.receive(wait=True)
            reads += 1
        assert found == frames
        assert isinstance(found[1], kind)
        assert reads <= most, "of a core that computes, each is a step"


def test_a_large_frame_without_a_descriptor_for_it_is_an_error(pair: Pair) -> None:
    pair[0].send(bytes(1 << 20))
    pair[0]._sender.join()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="ulimit -n"):
            pair[1].receive(wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_frame_that_is_too_long_ends_the_connection(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    end = FrameSocket(theirs)
    ours.sendall((MOST_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ClosedError):
        end.receive(wait=True)
    for each in (ours, end):
        each.close()

    class Long(bytes):
        def __len__(self) -> int:
            return MOST_BYTES + 1

    with pytest.raises(OverflowError, match="at most 1073741824"):
        pair[0].send(Long())


def test_what_was_sent_before_the_end_is_received(pair: Pair) -> None:
    pair[1].send(b"unread: the socket would be reset")
    for index in range(3):
        pair[0].send(b"%d" % index)
    pair[0].close()
    assert received(pair[1], 3) == [b"0", b"1", b"2"]
    for wait in (False, True):
        with pytest.raises(ClosedError):
            pair[1].receive(wait=wait)
    pair[1].send(b"nobody is there")


def test_closing_waits_for_unsent_frames_as_long_as_it_is_told(pair: Pair) -> None:
    pair[0].send(bytes(1 << 24))
    reader = threading.Thread(target=received, args=(pair[1], 1))
    reader.start()
    pair[0].close(linger=60)
    reader.join()
    begin = time.monotonic()
    pair[1].close(linger=60)  # has nothing to send
    assert time.monotonic() - begin < 30


def test_an_end_with_unsent_frames_can_close(pair: Pair) -> None:
    pair[0].send(bytes(1 << 24))
    pair[0].close()
    with pytest.raises(ClosedError):
        received(pair[1], 2)
