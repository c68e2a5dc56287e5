"""`--kv-events-config`: where the changes of the prefix cache are published."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from quire.core.extras import require
from quire.core.kv_sharing import KVEventsConfig
from quire.resolve.flag_values import read_json, wrong_flag

FLAG = "--kv-events-config"
_PARAM = "kv_events_config"
_error = partial(wrong_flag, _PARAM)
_EXAMPLE = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'
_DEFAULTS = KVEventsConfig()
_SCHEMES = ("tcp://", "ipc://", "inproc://")


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = _DEFAULTS.endpoint
    replay_endpoint: str | None = None
    buffer_steps: int = _DEFAULTS.buffer_steps
    hwm: int = _DEFAULTS.hwm
    max_queue_size: int = _DEFAULTS.max_queue_size
    topic: str = ""


def kv_events(text: str | None, replicas: range = range(1)) -> KVEventsConfig | None:
    """Return where events are published; None for nowhere.

    Args:
        replicas: their numbers, which are added to the ports.

    Raises:
        ConfigError: a field is unknown or wrong, or pyzmq is not installed.
    """
    if text is None:
        return None
    wanted = read_json(_PARAM, text, _Wanted, _EXAMPLE)
    for name in ("buffer_steps", "hwm", "max_queue_size"):
        value = getattr(wanted, name)
        if not 0 < value < 2**31:
            raise _error(f"{name} is {value}; it must be positive and below 2^31.")
    for name in ("endpoint", "replay_endpoint"):
        _check_endpoint(name, getattr(wanted, name), replicas)
    if not wanted.enable_kv_cache_events or wanted.publisher == "null":
        return None
    port, replay, count = _port(wanted.endpoint), _port(wanted.replay_endpoint), len(replicas)
    if port is not None and replay is not None and abs(port - replay) < count:
        raise _error(
            f"ports {port} and {replay} are too near: the numbers of {count} replicas are added.",
            f"Set endpoint and replay_endpoint at least {count} ports apart.",
        )
    require("zmq", FLAG, _PARAM)
    return msgspec.convert(wanted, KVEventsConfig, from_attributes=True)


def _check_endpoint(name: str, endpoint: str | None, replicas: range) -> None:
    if endpoint is None:
        return
    if not endpoint.startswith(_SCHEMES):
        raise _error(f"{name} is {endpoint!r}; it must begin with {', '.join(_SCHEMES)}.")
    port = _port(endpoint)
    if port is not None and not 0 < port <= 65535 - replicas[-1]:
        most = f", and replica {replicas[-1]} adds its number" if replicas[-1] else ""
        raise _error(f"{name} is {endpoint!r}; it must end in a port, as in tcp://*:5557{most}.")


def _port(endpoint: str | None) -> int | None:
    """Return the port of a tcp endpoint, 0 if it has none; None for other endpoints."""
    if endpoint is None or not endpoint.startswith("tcp://"):
        return None
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
