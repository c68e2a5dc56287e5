"""KV events: a consumer's copy of the prefix cache equals the cache, whatever it has missed."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.core.errors import ConfigError
from quire.core.images import ImageSpan
from quire.core.kv_sharing import KVEventsConfig
from quire.core.lora import LoRARequest
from quire.core.messages import BlockChanges
from quire.core.options import NO_INPUTS, RequestInputs, RequestOptions
from quire.engine import kv_events
from quire.engine.kv_events import (
    BlockRemoved,
    BlockStored,
    KVEventPublisher,
    events_of,
    of_rank,
    short_hash,
)
from quire.kv.runs import BlockRun
from tests.unit.engine.kv_consumer import Consumer
from tests.unit.engine.test_core import Steps, ask, finish, make

BLOCK = 16


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def run(*numbers: int, first: int = 0, inputs: RequestInputs = NO_INPUTS) -> BlockRun:
    """Return a run of blocks whose tokens are their numbers."""
    tokens = array("i", [number for number in numbers for _ in range(BLOCK)])
    before = name(999) if first else None
    return BlockRun(first, [name(number) for number in numbers], before, tokens, inputs)


@pytest.fixture
def config(tmp_path: Path) -> KVEventsConfig:
    return KVEventsConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", "kv", rank=3)


def test_a_consumer_knows_the_cache_exactly(config: KVEventsConfig) -> None:
    """Blocks enter, are evicted, forgotten by failed steps, and reset; more than the pool has."""
    publisher = KVEventPublisher(config, BLOCK)
    consumer = Consumer(config)
    core = make(8, Steps(7, 19), events=publisher)
    for number in range(12):
        core.add(ask(f"{number}", 20 + 13 * number % 70, max_tokens=30))
        finish(core)
        if number == 8:
            core.call("reset_prefix_cache", [])
            assert core.has_work()
            core.step()
    pool = core.scheduler.kv.pool
    blocks = {short_hash(name): name for name in pool._cached}
    assert len(blocks) > 3
    while publisher._waiting or consumer.catch_up() < publisher._next:
        pass  # the publisher's thread is not there yet
    assert consumer.blocks.keys() == blocks.keys()
    assert all(len(tokens) == BLOCK for _, tokens in consumer.blocks.values())
    assert consumer.ranks == {3}
    consumer.close()
    publisher.close()


def test_a_core_ends_with_its_publisher(config: KVEventsConfig) -> None:
    publisher = KVEventPublisher(config, BLOCK)
    make(events=publisher).shutdown()
    assert not publisher._thread.is_alive()


def test_messages_come_without_being_asked_for(config: KVEventsConfig) -> None:
    publisher = KVEventPublisher(config, BLOCK)
    consumer = Consumer(config)
    batch: Any = None
    for number in range(1000):  # until the subscription has arrived, and the thread keeps up
        publisher.put(BlockChanges([name(number)], []), [run(number)])
        if consumer.sub.poll(50):
            topic, _, payload = consumer.sub.recv_multipart()
            assert topic == b"kv"
            batch = msgspec.msgpack.decode(payload)
            if batch[1][0][0] == "BlockStored":
                break
    [hashes, _, tokens] = batch[1][0][1:4]
    assert tokens == hashes * BLOCK
    stored = ["BlockStored", hashes, None, tokens, BLOCK, None, "GPU", None, None]
    assert batch[1:] == [[stored], 3]
    publisher.close()
    consumer.close()


def test_the_replay_is_bounded_and_ignores_wrong_requests(
    config: KVEventsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = KVEventPublisher(replace(config, buffer_steps=3), BLOCK)
    for number in range(9):
        publisher.put(BlockChanges([name(number)], []), [run(number)])
    consumer = Consumer(config)
    consumer.replay.send_multipart([b"", b"short"])
    while len(found := consumer.ask(0)) < 3 or found[-1][0][-1] < 9:
        pass  # the publisher's thread is not there yet
    assert [number[-1] for number, _ in found] == [7, 8, 9]
    assert [number[-1] for number, _ in consumer.ask(9)] == [9]
    monkeypatch.setattr(kv_events, "REPLAY_BYTES", 1)
    publisher.put(BlockChanges([name(10)], []), [run(10)])
    while consumer.ask(0):
        pass
    publisher.close()
    consumer.close()


def test_a_full_queue_empties_the_consumers_caches(config: KVEventsConfig) -> None:
    publisher = KVEventPublisher(replace(config, max_queue_size=2), BLOCK)
    publisher.close()  # nothing is sent from now on
    publisher._wake = kv_events.os.eventfd(0)
    for number in range(3):
        publisher.put(BlockChanges([name(number)], []), [run(number)])
    kv_events.os.close(publisher._wake)
    (first, _), (second, runs) = publisher._waiting
    assert first.emptied
    assert not second.emptied
    assert second.entered == [name(2)] == runs[0].hashes


def test_what_waits_is_sent_before_the_end(config: KVEventsConfig) -> None:
    publisher = KVEventPublisher(config, BLOCK)
    for number in range(50):
        publisher.put(BlockChanges([name(number)], []), [run(number)])
    publisher.close()
    assert publisher._next == 51


def test_an_endpoint_in_use_is_refused(config: KVEventsConfig, tmp_path: Path) -> None:
    wrong = replace(config, replay_endpoint=f"ipc://{tmp_path}/no/folder")
    with pytest.raises(ConfigError, match="no/folder"):
        KVEventPublisher(wrong, BLOCK)
    KVEventPublisher(config, BLOCK).close()


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 2, "tcp://*:5559"),
        ("tcp://[::1]:9", 1, "tcp://[::1]:10"),
        ("ipc:///a:1", 2, "ipc:///a:1_dp2"),
    ],
)
def test_each_replica_has_an_endpoint(endpoint: str, rank: int, expected: str) -> None:
    assert of_rank(endpoint, rank) == expected


def test_only_what_entered_is_stored_once() -> None:
    changes = BlockChanges([name(n) for n in (1, 2, 4, 5)], [name(8)], emptied=True)
    runs = [run(1, 2, 3, 4, first=2), run(4, 5), run(6)]
    cleared, first, second, third, removed = events_of(changes, runs, BLOCK)
    assert isinstance(cleared, kv_events.AllBlocksCleared)
    assert isinstance(first, BlockStored)
    assert (first.block_hashes, first.parent_block_hash) == ([1, 2], 999)
    assert first.token_ids == [1] * BLOCK + [2] * BLOCK
    assert isinstance(second, BlockStored)
    assert (second.block_hashes, second.parent_block_hash) == ([4], 3)
    assert isinstance(third, BlockStored)
    assert (third.block_hashes, third.parent_block_hash) == ([5], 4)
    assert third.token_ids == [5] * BLOCK
    assert removed == BlockRemoved([8], "GPU")


def stored(inputs: RequestInputs, first: int = 0) -> BlockStored:
    changes = BlockChanges([name(1), name(2)], [])
    [event] = events_of(changes, [run(1, 2, first=first, inputs=inputs)], BLOCK)
    assert isinstance(event, BlockStored)
    return event


def test_keys_besides_tokens() -> None:
    def of(**options: Any) -> RequestInputs:
        return RequestInputs(RequestOptions(**options))

    assert stored(NO_INPUTS).extra_keys is None
    assert stored(of(cache_salt="s")).extra_keys == [["s"], None]
    assert stored(of(cache_salt="s"), first=1).extra_keys is None
    event = stored(of(lora_request=LoRARequest("a", 5, "folder")))
    assert (event.lora_id, event.lora_name, event.extra_keys) == (5, "a", [["a"], ["a"]])
    image = ImageSpan(BLOCK, 1, b"\x01", None, (1, 1), b"")
    assert stored(RequestInputs(images=(image,))).extra_keys == [None, ["01"]]
    image = ImageSpan(BLOCK - 1, 2, b"\x01", None, (1, 1), b"", whole=(0, 99))
    assert stored(RequestInputs(images=(image,))).extra_keys == [["01"], ["01"]]
    ahead = ImageSpan(2 * BLOCK - 1, 2, b"\x01", None, (1, 1), b"", whole=(0, 99))
    assert stored(RequestInputs(images=(ahead,))).extra_keys == [["01"], ["01"]]
    assert stored(RequestInputs(images=(ahead,)), first=3).extra_keys is None
    embedded = run(1, inputs=RequestInputs(prompt_embeds=b""))
    embedded.token_ids[0] = -1
    [event] = events_of(BlockChanges([name(1)], []), [embedded], BLOCK)  # type: ignore[list-item]
    assert (event.extra_keys, event.token_ids[:2]) == ([[name(1).hex()]], [0, 1])
