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
from quire.resolve.flag_values import read_json, read_object, wrong_flag
from quire.resolve.vllm_flags import FOREIGN, GRAPH_SIZES, PREFIX, foreign_notes
from quire.system import env

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
_OF_CONFIG_JSON = {"rope_scaling": '{"rope_type": "yarn", "factor": 4.0}', "rope_theta": "1000000"}
"""Older flags that are fields of config.json, each with an example."""
_READERS = ("bitsandbytes", "fastsafetensors", "instanttensor", "mistral", "runai_streamer")
OTHER_VALUES: dict[str, tuple[dict[Any, Any], str]] = {
    "max_logprobs": ({-1: 1024}, "a position has no more"),
    "load_format": (dict.fromkeys(_READERS, "auto"), "the files decide how they are read"),
    "prefix_caching_hash_algo": (
        dict.fromkeys(("builtin", "sha256_cbor", "sha256_cbor_64bit"), "sha256")
        | {"xxhash_cbor": "xxhash"},
        "blocks are hashed in one way",
    ),
}
"""Field → vLLM's value → the one with the same answers; and the reason."""
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


def modernize(found: dict[str, Any]) -> list[str]:
    """Replace vLLM's older names and values by today's, in place; return notes on them.

    Raises:
        ConfigError: the text of a JSON flag is no JSON.
    """
    for name, value in _TASKS.get(str(found.get("task")), {}).items():
        found.pop("task", None)
        if found.get(name, "auto") == "auto":
            found[name] = value
    if (pooler := found.pop("override_pooler_config", None)) is not None:
        found["pooler_config"] = pooler if isinstance(pooler, str) else json.dumps(pooler)
    for name, example in _OF_CONFIG_JSON.items():
        if (given := found.pop(name, None)) is not None:
            read = read_json(name, given, object, example) if isinstance(given, str) else given
            others = read_object("hf_overrides", found.get("hf_overrides"))
            found["hf_overrides"] = json.dumps(others | {name: read})
    if sizes := {name: found.pop(name) for name in GRAPH_SIZES if found.get(name) is not None}:
        given = found.get("compilation_config")
        if given is not None and given.strip().isdecimal():  # vLLM's -O3
            given = f'{{"level": {given}}}'
        fields = read_object("compilation_config", given)
        for name, value in sizes.items():
            fields |= _graph_sizes(name, value)
        found["compilation_config"] = json.dumps(fields)
    if isinstance(token := found.pop("hf_token", None), str):
        env.use_hf_token(token)
    notes = []
    for name, (same, why) in OTHER_VALUES.items():
        given = found.get(name)
        if isinstance(given, str | int) and given in same:
            found[name] = same[given]
            notes.append(f"--{name.replace('_', '-')} {given} means {same[given]}: {why}.")
    return notes


def _graph_sizes(name: str, value: Any) -> dict[str, Any]:
    """Return a flag of captured sizes as a field of --compilation-config.

    One number of the older --cuda-graph-sizes is the largest size.

    Raises:
        ConfigError: it holds no number.
    """
    given = value if isinstance(value, list | tuple) else [value]
    try:
        sizes = [int(each) for each in given]
    except ValueError as error:
        raise wrong_flag(name, f"{' '.join(map(str, given))} is no list of numbers") from error
    if name == "max_cudagraph_capture_size" or (name == "cuda_graph_sizes" and len(sizes) == 1):
        return {"max_cudagraph_capture_size": sizes[-1]}
    return {"cudagraph_capture_sizes": sizes}


def _own_fields(given: Mapping[str, Any], fields: set[str]) -> dict[str, Any]:
    """Return the fields in `given`; log vLLM's names that have no effect."""
    found = {name.removeprefix(PREFIX): value for name, value in given.items()}
    for name in _JSON_FIELDS:
        if isinstance(found.get(name), Mapping | int):
            found[name] = json.dumps(found[name])
    if isinstance(domains := found.get("allowed_media_domains"), list):
        found["allowed_media_domains"] = ",".join(map(str, domains))
    notes = modernize(found)
    if found.keys() <= fields and not notes:
        return found
    foreign = {name: found.pop(name) for name in [*found] if name in FOREIGN}
    server = [name for name in [*found] if name in _OF_THE_SERVER and name not in fields]
    notes += foreign_notes(foreign)
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
