"""`EngineArgs(...)` with vLLM's names: accepted or refused like its flags."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from quire.core.errors import ConfigError
from quire.core.log import setup_logging
from quire.core.registry import did_you_mean
from quire.resolve.vllm_flags import FOREIGN, PREFIX, foreign_notes

logger = logging.getLogger(__name__)

_JSON_FIELDS = (
    "pooler_config", "hf_overrides", "speculative_config", "limit_mm_per_prompt",
    "mm_processor_kwargs", "kv_transfer_config", "kv_events_config", "compilation_config",
    "override_generation_config",
)  # fmt: skip
"""Fields with JSON text; in Python they may be mappings, or numbers."""
_TASKS = {
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling"},
}
"""vLLM's old `task` in today's fields."""
_OF_THE_SERVER = {
    "served_model_name": "only `quire serve` needs a name",
    "reasoning_parser": "only `quire serve` parses reasoning; Python gets the whole text",
}

Arguments = TypeVar("Arguments")


def takes_vllm_names(cls: type[Arguments]) -> type[Arguments]:
    """Make a dataclass of engine arguments accept vLLM's names, and refuse unknown ones by name.

    The constructor raises `ConfigError` instead of `TypeError`.
    """
    plain = cls.__init__
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    @functools.wraps(plain)
    def take(self: Arguments, *args: Any, **given: Any) -> None:
        plain(self, *args, **_own_fields(given, fields))

    cls.__init__ = take  # type: ignore[method-assign, assignment]
    return cls


def _own_fields(given: Mapping[str, Any], fields: set[str]) -> dict[str, Any]:
    """Return the fields in `given`; log vLLM's names that have no effect."""
    found = {name.removeprefix(PREFIX): value for name, value in given.items()}
    for name in _JSON_FIELDS:
        if isinstance(found.get(name), Mapping | int):
            found[name] = json.dumps(found[name])
    if isinstance(domains := found.get("allowed_media_domains"), list):
        found["allowed_media_domains"] = ",".join(map(str, domains))
    if found.keys() <= fields:
        return found
    if found.get("task") in _TASKS:
        for name, value in _TASKS[found.pop("task")].items():
            if found.get(name, "auto") == "auto":
                found[name] = value
    foreign = {name: found.pop(name) for name in [*found] if name in FOREIGN}
    server = [name for name in [*found] if name in _OF_THE_SERVER and name not in fields]
    notes = [*foreign_notes(foreign)]
    for name in server:
        del found[name]
        notes.append(f"{name} has no effect: {_OF_THE_SERVER[name]}.")
    if notes:
        setup_logging()
    for note in notes:
        logger.info(note)
    for name in found:
        if name not in fields:
            raise ConfigError(
                f"unknown engine argument {name!r}; {did_you_mean(name, fields)}", param=name
            )
    return found
