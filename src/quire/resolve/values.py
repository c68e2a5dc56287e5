"""Checks of arguments that depend on neither model nor machine."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from functools import cache
from ipaddress import ip_address
from typing import Any, Literal

import msgspec

from quire.core.config import STEP_TOKENS
from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.core.sampling_params import MOST_LOGPROBS
from quire.resolve.arguments import EngineArgs
from quire.resolve.context import AUTO
from quire.resolve.flag_values import expanded, refusal, value_error

BLOCK_SIZES = (8, 16, 32)

_BYTES = 2**62
_SIZES = (
    "cpu_offload_gb",
    "mm_processor_cache_gb",
    "swap_space",
    "kv_offloading_size",
    "kv_offloading_disk_size",
)
_RANGES: dict[str, tuple[float, float]] = {
    "seed": (-(2**63), 2**63 - 1),
    "max_model_len": (1, 2**31 - 1),
    "kv_cache_memory_bytes": (1, _BYTES),
    "num_gpu_blocks_override": (1, 2**31 - 1),
    **dict.fromkeys(_SIZES, (0, 2**20)),
    "max_num_seqs": (1, 2**16),
    "max_num_batched_tokens": (1, 2**24),
    "max_itl_stretch": (1, math.inf),
    "num_scheduler_steps": (1, 1024),
    "step_timeout": (0, 10**9),
    "num_threads": (1, 1024),
    "tensor_parallel_size": (1, 1024),
    "pipeline_parallel_size": (1, 1024),
    "data_parallel_size": (1, 256),
    "data_parallel_size_local": (0, 256),
    "data_parallel_start_rank": (0, 255),
    "data_parallel_rank": (0, 255),
    "prefill_replicas": (0, 255),
    "decode_replicas": (0, 255),
    "nnodes": (1, 1024),
    "master_port": (1, 2**16 - 1),
    "data_parallel_rpc_port": (1, 2**16 - 1),
    "pack_cache_bytes": (0, _BYTES),
    "max_loras": (1, 1024),
    "max_lora_rank": (1, 2**16),
    "max_cpu_loras": (1, 2**20),
    "tokenizer_pool_size": (0, 64),
    "max_logprobs": (0, MOST_LOGPROBS),
}
"""Field → least and largest value. Larger values would not fit into arrays and messages."""


def check_values(args: EngineArgs) -> None:
    """Raise `ConfigError` for a value that is wrong for all models and machines."""
    for name, hint in _hints().items():
        value = getattr(args, name)
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            why = refusal(name, str(value)) or did_you_mean(str(value), typing.get_args(hint))
            raise value_error(args, name, why)
        if isinstance(value, str) and ("\0" in value or not _is_utf8(value)):
            raise value_error(args, name, "it must be UTF-8, without a NUL.")
    try:
        msgspec.convert(dataclasses.asdict(args), EngineArgs)
    except msgspec.ValidationError as error:
        raise ConfigError(f"An engine argument has the wrong type: {error}.") from None
    if args.block_size not in BLOCK_SIZES:
        raise value_error(args, "block_size", f"it must be one of {BLOCK_SIZES}.")
    if args.gpu_memory_utilization is not None and not 0.0 < args.gpu_memory_utilization <= 1.0:
        raise value_error(args, "gpu_memory_utilization", "it must be in (0, 1].")
    for name in _RANGES:
        _check_range(args, name)
    for name in ("download_dir", "kv_offloading_dir"):
        if (folder := getattr(args, name)) is not None:
            expanded(folder, name)
    hosts = ("master_addr", "master-port"), ("data_parallel_address", "data-parallel-rpc-port")
    for name, port in hosts:
        if not _is_host(getattr(args, name)):
            why = f"it must be a host name or an IP address; the port is --{port}."
            raise value_error(args, name, why)
    if args.preemption_mode == "swap" and not args.swap_space:
        raise value_error(args, "preemption_mode", "it needs a --swap-space.")
    if args.kv_offloading_dir is not None and args.prefix_caching_hash_algo != "sha256":
        raise value_error(
            args,
            "kv_offloading_dir",
            "it needs --prefix-caching-hash-algo sha256: the others have a new seed at each start.",
        )
    if step_tokens(args) < args.max_num_seqs:
        raise value_error(
            args,
            "max_num_batched_tokens",
            f"it must be at least max_num_seqs, {args.max_num_seqs}, "
            "so that a step can serve all running sequences.",
        )


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(EngineArgs)


def step_tokens(args: EngineArgs) -> int:
    return args.max_num_batched_tokens or max(STEP_TOKENS, args.max_num_seqs)


def _check_range(args: EngineArgs, name: str) -> None:
    value = getattr(args, name)
    low, high = _RANGES[name]
    bound = f"at most {high}" if value is not None and value > high else f"at least {low}"
    # NaN fails all comparisons, so test for valid values.
    if value is None or low <= value <= high or (name, value) == ("max_model_len", AUTO):
        return
    if name in _SIZES:
        raise value_error(args, name, f"it must be a size in GiB, 0 for none, at most {high}.")
    raise value_error(args, name, f"it must be {bound}.")


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", text) is not None
    return True


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
