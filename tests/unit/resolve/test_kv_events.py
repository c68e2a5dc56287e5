"""`--kv-events-config`: what it sets, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core import extras
from quire.core.errors import ConfigError
from quire.core.kv_sharing import KVEventsConfig
from quire.resolve.kv_events import kv_events

ON = {"enable_kv_cache_events": True}


def test_defaults_are_those_of_vllm() -> None:
    assert kv_events(json.dumps(ON)) == KVEventsConfig("tcp://*:5557", None, "", 10_000, 100_000)
    fields = {
        "publisher": "zmq", "endpoint": "ipc:///e", "replay_endpoint": "tcp://*:1", "topic": "kv",
        "buffer_steps": 1, "hwm": 2, "max_queue_size": 3,
    }  # fmt: skip
    expected = KVEventsConfig("ipc:///e", "tcp://*:1", "kv", 1, 2, 3)
    assert kv_events(json.dumps(ON | fields)) == expected


@pytest.mark.parametrize("text", [None, "{}", json.dumps(ON | {"publisher": "null"})])
def test_events_may_be_off(text: str | None) -> None:
    assert kv_events(text) is None


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ("no json", "is wrong"),
        ({"publisher": "nats"}, "nats"),
        ({"endpoints": "tcp://*:5557"}, "endpoints"),
        ({"endpoint": "udp://*:5557"}, "udp"),
        ({"endpoint": "tcp://*"}, "end in a port"),
        ({"replay_endpoint": "tcp://*:0"}, "replay_endpoint"),
        ({"endpoint": "tcp://*:65536"}, "65536"),
        ({"hwm": 0}, "hwm is 0"),
        ({"buffer_steps": -1}, "buffer_steps is -1"),
        ({"max_queue_size": 2**31}, "max_queue_size"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any] | str, match: str) -> None:
    text = fields if isinstance(fields, str) else json.dumps(ON | fields)
    with pytest.raises(ConfigError, match=match) as error:
        kv_events(text)
    assert error.value.param == "kv_events_config"


@pytest.mark.parametrize(
    ("port", "replay", "replicas", "match"),
    [
        (5557, 5557, range(1), "5557 and 5557 are too near"),
        (5557, 5558, range(2), "at least 2 ports apart"),
        (5559, 5557, range(4, 7), "5559 and 5557"),
        (65535, 5557, range(2), "replica 1 adds"),
    ],
)
def test_ports_of_replicas_must_differ(port: int, replay: int, replicas: range, match: str) -> None:
    ends = {"endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://*:{replay}"}
    with pytest.raises(ConfigError, match=match):
        kv_events(json.dumps(ON | ends), replicas)
    near = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5559"}
    assert kv_events(json.dumps(ON | near), range(2)) is not None


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "installed", lambda module: module != "zmq")
    with pytest.raises(ConfigError, match="needs zmq"):
        kv_events(json.dumps(ON))
