"""`--kv-transfer-config`: prompts computed by one engine, answers by another."""

from __future__ import annotations

import dataclasses
import os
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from quire.core.config import ON_TORCH
from quire.core.kv_sharing import KVRole, LoadFailurePolicy, TransferConfig
from quire.core.model_config import ModelConfig
from quire.core.registry import did_you_mean
from quire.resolve.arguments import EngineArgs
from quire.resolve.device import GIB
from quire.resolve.flag_values import read_json, wrong_flag
from quire.system import env

FLAG = "--kv-transfer-config"
_PARAM = "kv_transfer_config"
_error = partial(wrong_flag, _PARAM)
CONNECTORS = (
    "ExampleConnector", "SharedStorageConnector", "OffloadingConnector", "NixlConnector",
    "LMCacheConnectorV1", "LMCacheMPConnector", "MooncakeConnector", "MultiConnector",
    "P2pNcclConnector",
)  # fmt: skip
"""vLLM's connectors. All of them mean the same here: a folder of blocks by their content."""
_NO_EFFECT = ("kv_rank", "kv_parallel_size", "enable_permute_local_kv")
SHARED_MEMORY = Path("/dev/shm")
_FOLDER = """Add "kv_connector_extra_config": {"shared_storage_path": "a folder"}."""
_EXAMPLE = '{"kv_connector": "ExampleConnector", "kv_role": "kv_producer"}'


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    kv_role: KVRole
    kv_connector: str = CONNECTORS[0]
    engine_id: str | None = None
    kv_buffer_device: str = "cpu"
    kv_buffer_size: float | None = None
    kv_load_failure_policy: LoadFailurePolicy = "recompute"
    kv_connector_extra_config: dict[str, Any] = {}
    kv_rank: int | None = None
    kv_parallel_size: int | None = None
    kv_ip: str | None = None
    kv_port: int | None = None
    enable_permute_local_kv: bool | None = None


def with_transfer(
    args: EngineArgs, model: ModelConfig, notes: list[str]
) -> tuple[EngineArgs, TransferConfig | None]:
    """Return the arguments with the folder that the engines share, and the configuration.

    Replicas of one server need no folder if they share memory.

    Raises:
        ConfigError: a field is unknown, wrong or does not fit the other flags.
    """
    if args.kv_transfer_config is not None:
        wanted = _parse(args.kv_transfer_config)
    elif args.prefill_replicas:
        wanted = _Wanted("kv_both")
    else:
        return args, None
    if args.prefill_replicas and (wanted.kv_role != "kv_both" or wanted.kv_port is not None):
        raise _error(
            "with --prefill-replicas the server computes prompts and answers.",
            """Set "kv_role": "kv_both", and omit kv_port.""",
        )
    if not args.enable_prefix_caching:
        raise _error("without prefix caching there are no blocks to hand over.")
    folder = wanted.kv_connector_extra_config.get("shared_storage_path")
    if folder is not None and not isinstance(folder, str):
        raise _error(f"shared_storage_path is {folder!r}, which is no path.")
    if folder and args.kv_offloading_dir and folder != args.kv_offloading_dir:
        raise _error(
            f"shared_storage_path is {folder}, --kv-offloading-dir {args.kv_offloading_dir}.",
            "Name the folder once.",
        )
    ignored = [name for name in _NO_EFFECT if getattr(wanted, name) is not None]
    ignored += [name for name in wanted.kv_connector_extra_config if name != "shared_storage_path"]
    if ignored:
        notes.append(f"{FLAG}: {', '.join(ignored)} has no effect; blocks have names by content.")
    size = args.kv_offloading_disk_size
    if wanted.kv_buffer_size is not None:
        size = wanted.kv_buffer_size / GIB
    directory = folder or args.kv_offloading_dir
    shares = bool(args.prefill_replicas) and _may_share_memory(args, model)
    if shares:
        notes.append("Replicas for prompts lend their KV blocks in shared memory.")
    elif directory is None:
        directory, most = _shared_memory()
        size = min(size, most / 2 / GIB)
    if not shares:
        notes.append(f"{wanted.kv_role}: KV blocks are handed over in {directory}.")
    args = dataclasses.replace(args, kv_offloading_dir=directory, kv_offloading_disk_size=size)
    name = wanted.engine_id or uuid.uuid4().hex
    policy = wanted.kv_load_failure_policy
    address = _address(args, wanted)
    prefill = args.prefill_replicas
    return args, TransferConfig(wanted.kv_role, name, policy, address, prefill, shares)


def _may_share_memory(args: EngineArgs, model: ModelConfig) -> bool:
    """Return whether blocks alone, in one process per replica, are all that a prompt leaves.

    States of recurrent layers and a draft model's blocks are not lent.
    """
    return (
        sys.platform == "linux"
        and model.recurrent is None
        and args.speculative_config is None
        and args.tensor_parallel_size * args.pipeline_parallel_size == 1
        and args.ops not in ON_TORCH
    )


def _address(args: EngineArgs, wanted: _Wanted) -> tuple[str, int] | None:
    """Return where blocks are served by TCP; None if the engines share the folder."""
    if wanted.kv_port is None:
        return None
    if not 0 < wanted.kv_port < 65536:
        raise _error(f"kv_port is {wanted.kv_port}; it must be in [1, 65535].")
    if args.tensor_parallel_size * args.pipeline_parallel_size > 1:
        raise _error(
            "kv_port needs a model in one process.",
            "Omit kv_port, and share a folder; or set --tensor-parallel-size 1.",
        )
    if env.cluster_key() is None:
        raise _error(
            "kv_port needs a key that both engines know.",
            "Set QUIRE_CLUSTER_KEY to the same random characters for both.",
        )
    return wanted.kv_ip or "127.0.0.1", wanted.kv_port


def _parse(text: str) -> _Wanted:
    wanted = read_json(_PARAM, text, _Wanted, _EXAMPLE)
    if wanted.kv_connector not in CONNECTORS:
        hint = did_you_mean(wanted.kv_connector, CONNECTORS)
        raise _error(f"kv_connector is {wanted.kv_connector!r}; {hint}")
    if wanted.kv_buffer_size is not None and wanted.kv_buffer_size <= 0:
        raise _error(f"kv_buffer_size is {wanted.kv_buffer_size}; it must be positive.")
    return wanted


def _shared_memory() -> tuple[str, int]:
    """Return a folder in shared memory that all of a user's engines share, and its bytes.

    It is the user's alone: others could read prompts in it, or write blocks of their own.
    """
    if not SHARED_MEMORY.is_dir():
        raise _error(f"there is no {SHARED_MEMORY}.", _FOLDER)
    import shutil

    folder, user = SHARED_MEMORY / f"quire-{os.getuid()}", os.getuid()
    try:
        folder.mkdir(0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != user:
            raise _error(f"{folder} belongs to another user.", _FOLDER)
        folder.chmod(0o700)
    except OSError as error:
        raise _error(f"{folder} cannot be used: {error.strerror}.", _FOLDER) from error
    return str(folder), shutil.disk_usage(SHARED_MEMORY).total
