"""Blocks by TCP: what arrives, who is refused, and what a lost connection costs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.kv.lower_tiers import BlockFolder, PromisedBlocks
from quire.runner import kv_peer
from quire.runner.kv_files import BlockFiles
from quire.runner.kv_peer import BLOCK, STATE, BlockServer, Peer, PeerBlocks
from tests.certificate import write_pem

FACTS = {"version": "1", "dtype": "bfloat16", "block_size": "16"}
KEY, WORDS = b"k" * 32, 1000
ROW = np.arange(WORDS, dtype=np.int64)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    files = BlockFiles(BlockFolder(tmp_path, bytes(16)), 8 * WORDS, 2**20)
    files.write(b"a", ROW, 77)
    files.flush()
    yield files
    files.close()


@pytest.fixture
def server(files: BlockFiles) -> Iterator[BlockServer]:
    server = BlockServer(Peer(("127.0.0.1", 0), KEY, FACTS), {BLOCK: files, STATE: files})
    yield server
    server.close()


Connect = Callable[..., PeerBlocks]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that makes consumers."""
    made: list[PeerBlocks] = []

    def connect(address: tuple[str, int], kind: bytes = BLOCK, **facts: str) -> PeerBlocks:
        made.append(PeerBlocks(Peer(address, KEY, FACTS | facts), kind))
        return made[-1]

    yield connect
    for blocks in made:
        blocks.close()


def test_a_block_arrives_and_a_missing_one_is_named(server: BlockServer, connect: Connect) -> None:
    blocks, row = connect(server.address), np.empty(WORDS, dtype=np.int64)
    for _ in range(2):
        assert blocks.read(b"a", row) == 77
        np.testing.assert_array_equal(row, ROW)
        with pytest.raises(FileNotFoundError):
            blocks.read(b"b", row)
    states = connect(server.address, STATE)
    assert states.read(b"a", row) == 77


def test_only_plain_files_are_blocks(
    files: BlockFiles, server: BlockServer, connect: Connect
) -> None:
    """A pipe is a missing block, and the connection goes on."""
    blocks, row = connect(server.address), np.empty(WORDS, dtype=np.int64)
    os.mkfifo(files.folder.path(b"pipe"))
    with pytest.raises(OSError, match="no plain file"):
        files.read(b"pipe", row)
    with pytest.raises(FileNotFoundError):
        blocks.read(b"pipe", row)
    assert blocks._connection is not None
    assert blocks.read(b"a", row) == 77


def test_an_encrypted_block_arrives(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than all buffers. A consumer that does not encrypt is refused by name."""
    monkeypatch.setenv("QUIRE_CLUSTER_TLS", write_pem(tmp_path / "cluster.pem"))
    large = np.arange(2**18, dtype=np.int64)
    with closing(BlockFiles(BlockFolder(tmp_path, bytes(16)), large.nbytes, 2**24)) as files:
        files.write(b"a", large, 78)
        files.flush()
        address = "127.0.0.1", 0
        with closing(BlockServer(Peer(address, KEY, FACTS), {BLOCK: files})) as server:
            row = np.empty_like(large)
            assert connect(server.address).read(b"a", row) == 78
            np.testing.assert_array_equal(row, large)
            monkeypatch.delenv("QUIRE_CLUSTER_TLS")
            with pytest.raises(ConfigError, match="it has QUIRE_CLUSTER_TLS, and this machine has"):
                connect(server.address).check()


def test_blocks_are_asked_for_ahead_and_cancelled_ones_are_skipped(
    server: BlockServer, files: BlockFiles, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, send = list[bytes](), BlockServer._send
    monkeypatch.setattr(BlockServer, "_send", lambda *args: (asked.append(args[-1]), send(*args)))
    for number in range(20):
        files.write(b"%d" % number, ROW + number, number)
    files.flush()
    blocks, row = connect(server.address), np.empty(WORDS, dtype=np.int64)
    blocks.expect(b"%d" % number for number in range(20))
    blocks.expect([b"gone", b"a"])
    for number in (0, 1, 4, 15, 19):  # the others were cancelled
        assert blocks.read(b"%d" % number, row) == number
        np.testing.assert_array_equal(row, ROW + number)
    with pytest.raises(FileNotFoundError):
        blocks.read(b"gone", row)
    assert blocks.read(b"a", row) == 77
    assert blocks.read(b"3", row) == 3  # not expected
    assert not {*asked} & {b"%d" % number for number in range(10, 15)}


@pytest.mark.parametrize("field", FACTS)
def test_another_model_is_refused_by_name_and_not_dialled_again(
    server: BlockServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(kv_peer, "AGAIN_SECONDS", 600.0)
    blocks, began = connect(server.address, **{field: "other"}), time.monotonic()
    with pytest.raises(ConfigError, match=f"its {field} is other, and here it is") as error:
        blocks.check()
    assert time.monotonic() - began < 1.0
    assert error.value.param == "kv_transfer_config"
    server.close()
    with pytest.raises(OSError, match=field):  # by what is remembered
        blocks.read(b"a", np.empty(WORDS, dtype=np.int64))


def test_another_key_is_refused(server: BlockServer) -> None:
    with pytest.raises(ConfigError, match="another key"):
        PeerBlocks(Peer(server.address, b"x" * 32, FACTS)).check()


def test_a_block_of_another_size_ends_the_connection(server: BlockServer, connect: Connect) -> None:
    blocks = connect(server.address)
    with pytest.raises(ConnectionError, match="8000 bytes instead of 80"):
        blocks.read(b"a", np.empty(10, dtype=np.int64))
    assert blocks.read(b"a", np.empty(WORDS, dtype=np.int64)) == 77


def test_a_producer_that_comes_later_is_found(
    files: BlockFiles, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_peer, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(kv_peer, "DIAL_SECONDS", 0.0)
    first = BlockServer(Peer(("127.0.0.1", 0), KEY, FACTS), {BLOCK: files})
    address = first.address
    first.close()
    blocks, row = connect(address), np.empty(WORDS, dtype=np.int64)
    blocks.check()  # only warns
    blocks.expect([b"a", b"b"])
    with pytest.raises(OSError, match="does not answer"):
        blocks.read(b"a", row)
    assert not blocks._expected  # it may be gone for long
    second = BlockServer(Peer(address, KEY, FACTS), {BLOCK: files})
    assert blocks.read(b"a", row) == 77
    second.close()


def test_promised_blocks_are_found_until_they_are_lost() -> None:
    tier = PromisedBlocks()
    tier.promise([b"a", b"b"])
    assert tier.find(b"a")
    tier.lose(b"a")
    assert not tier.find(b"a")
    assert not tier.of_states.find(b"b")
    tier.of_states.promise([b"b"])
    assert tier.of_states.find(b"b")
    tier.forget_all()
    assert not tier.find(b"b")
