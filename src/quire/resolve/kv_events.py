"""`--kv-events-config`: where the changes of the prefix cache are published."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from quire.core.config import KVEventsConfig
from quire.core.extras import require
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


def kv_events(text: str | None) -> KVEventsConfig | None:
    """Return where events are published; None for nowhere.

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
        _check_endpoint(name, getattr(wanted, name))
    if not wanted.enable_kv_cache_events or wanted.publisher == "null":
        return None
    require("zmq", FLAG, _PARAM)
    return KVEventsConfig(
        wanted.endpoint,
        wanted.replay_endpoint,
        wanted.topic,
        wanted.buffer_steps,
        wanted.hwm,
        wanted.max_queue_size,
    )


def _check_endpoint(name: str, endpoint: str | None) -> None:
    if endpoint is None:
        return
    port = endpoint.rpartition(":")[2]
    if not endpoint.startswith(_SCHEMES):
        raise _error(f"{name} is {endpoint!r}; it must begin with {', '.join(_SCHEMES)}.")
    if endpoint.startswith("tcp://") and not (port.isdecimal() and 0 < int(port) < 65536):
        raise _error(f"{name} is {endpoint!r}; it must end in a port, as in tcp://*:5557.")
