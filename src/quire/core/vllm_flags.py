"""vLLM's engine and server flags that Quire has no use for, or cannot serve: what becomes of each.

A flag that asks for what Quire does anyway is taken, and a note says so. One that asks for what it
does not do is refused, with what to write instead: it is never passed over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quire.core.errors import ConfigError

PREFIX = "vllm."
"""Before the names of these in a namespace."""


class Foreign(NamedTuple):
    """One of vLLM's flags.

    Attributes:
        why: what Quire does, or what to use in its place.
        same: the values that ask for what Quire does; None is all of them.
        switch: it stands alone on a command line.
    """

    why: str
    same: tuple[str, ...] | None = ()
    switch: bool = False


def _always(why: str, *, switch: bool = True) -> Foreign:
    return Foreign(why, None, switch)


_ON, _OFF = ("true",), ("false",)
_ONE = ("1",)
_WHOLE = "one process serves all requests; run more servers behind a router"
_GRAPHS = "steps are replayed from a plan, which takes any number of rows"
_TEXT = "models take text"
_DRAFT = "speculative decoding is not there yet"

FOREIGN: dict[str, Foreign] = {
    # what is so in any case
    "trust_remote_code": _always("no code of a checkpoint is ever run, and none is needed"),
    "disable_log_requests": _always("prompts are never logged"),
    "disable_uvicorn_access_log": _always("requests are not logged; /metrics counts them"),
    "disable_log_stats": _always(
        "the engine always counts, at 3 µs a step; QUIRE_LOG_LEVEL=WARNING keeps its log quiet"
    ),
    "fully_sharded_loras": _always("adapters are cut as their layers are"),
    "use_v2_block_manager": _always("there is one block manager"),
    "disable_custom_all_reduce": _always("ranks add up in shared memory, in a fixed order"),
    "enable_prompt_tokens_details": _always("usage always tells cached_tokens"),
    "enable_request_id_headers": _always("every answer has an X-Request-Id"),
    "enable_server_load_tracking": _always("GET /load always tells"),
    "disable_frontend_multiprocessing": Foreign(
        "the engine core has a process of its own; LLM runs it in yours", _OFF, switch=True
    ),
    "enable_chunked_prefill": Foreign(
        "long prompts are always computed in chunks; --max-num-batched-tokens makes them longer",
        _ON,
        switch=True,
    ),
    "max_seq_len_to_capture": _always(_GRAPHS, switch=False),
    "compilation_config": _always(f"nothing is compiled: {_GRAPHS}", switch=False),
    "uvicorn_log_level": _always("QUIRE_LOG_LEVEL sets what is logged", switch=False),
    "tokenizer_mode": Foreign("there is one way to tokenize", ("auto", "fast")),
    "distributed_executor_backend": Foreign(
        "ranks are processes of this machine", ("mp", "uni", "none")
    ),
    "guided_decoding_backend": Foreign(
        "structures are llguidance's", ("auto", "guidance", "llguidance")
    ),
    "max_logprobs": Foreign("up to 20 log-probabilities a token are told", ("20",)),
    "config_format": Foreign("the format is found out", ("auto", "hf")),
    "model_impl": Foreign("architectures are Quire's own", ("auto", "vllm")),
    # what is not there
    "pipeline_parallel_size": Foreign(
        "layers are not divided among processes; use --tensor-parallel-size", _ONE
    ),
    "data_parallel_size": Foreign(_WHOLE, _ONE),
    "api_server_count": Foreign(_WHOLE, _ONE),
    "enable_expert_parallel": Foreign("mixtures of experts are not served", _OFF, switch=True),
    "speculative_config": Foreign(_DRAFT),
    "speculative_model": Foreign(_DRAFT),
    "num_speculative_tokens": Foreign(_DRAFT),
    "structured_outputs_config": Foreign("structures are llguidance's, parsers have their flags"),
    "tokenizer_revision": Foreign("--tokenizer takes a folder of its own"),
    "hf_token": Foreign("set HF_TOKEN, or log in with `hf auth login`"),
    "enable_sleep_mode": Foreign("stop the server; the next start is fast", _OFF, switch=True),
    "kv_transfer_config": Foreign("prompts and answers are computed by the same process"),
    "limit_mm_per_prompt": Foreign(_TEXT),
    "mm_processor_kwargs": Foreign(_TEXT),
    "skip_tokenizer_init": Foreign(
        "the tokenizer is always loaded; prompt_token_ids are taken, and detokenize=False leaves "
        "answers as they are",
        _OFF,
        switch=True,
    ),
    "enable_log_requests": Foreign(
        "prompts are never logged; GET /dashboard/requests/ID tells what happened to one",
        _OFF,
        switch=True,
    ),
    "task": Foreign("use --runner pooling, with --convert embed or classify", ("auto", "generate")),
    "rope_scaling": Foreign("""use --hf-overrides '{"rope_scaling": …}'"""),
    "rope_theta": Foreign("""use --hf-overrides '{"rope_theta": …}'"""),
    "override_generation_config": Foreign("give each request its values, or edit the file"),
    "max_num_partial_prefills": Foreign("--max-itl-stretch shares a step out", _ONE),
    "long_prefill_token_threshold": Foreign("--max-itl-stretch shares a step out", ("0",)),
    "root_path": Foreign("let the proxy strip the prefix"),
    "middleware": Foreign("no code of others runs in the server; put a proxy before it"),
}

_SHORT = {
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "compilation_config": ("-O",),
}


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Have `parser` know them all, without a word in its help."""
    for name, foreign in FOREIGN.items():
        spellings = [f"--{name.replace('_', '-')}", f"--{name}"]
        hidden: dict[str, Any] = {
            "dest": PREFIX + name,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS,
        }
        if foreign.switch:
            parser.add_argument(*spellings, action="store_true", **hidden)
            offs = [f"--no-{spellings[0][2:]}", f"--no_{name}"]
            parser.add_argument(*offs, action="store_false", **hidden)
        else:
            parser.add_argument(*spellings, *_SHORT.get(name, ()), **hidden)


def foreign_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a parsed command line, or its file, gives; by name."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in namespace.items()
        if name.startswith(PREFIX)
    }


def foreign_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """What to say of values that are taken; those of names that are not vLLM's are passed over.

    Raises:
        ConfigError: at the first that asks for what Quire does not do.
    """
    for name, value in values.items():
        if name not in FOREIGN or value is None:
            continue
        foreign, flag = FOREIGN[name], "--" + name.replace("_", "-")
        spelled = value if isinstance(value, str) else json.dumps(value, default=str)
        if foreign.same is not None and spelled.lower() not in foreign.same:
            given = f"{flag} {spelled}" if foreign.same else flag  # which may be a secret
            raise ConfigError(f"{given} is vLLM's: {foreign.why}.", fix="Leave it out.", param=flag)
        yield f"{flag} has no effect: {foreign.why}."
