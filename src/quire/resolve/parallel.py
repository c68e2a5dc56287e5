"""Check whether several processes can share a model."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.models.weights.shares import shared_config
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import Hardware

_FLAG = "tensor_parallel_size"


def with_ranks(
    args: EngineArgs, config: EngineConfig, hardware: Hardware, notes: list[str]
) -> EngineConfig:
    """Return the configuration with its threads divided evenly among the ranks.

    Raises:
        ConfigError: there are fewer cores or threads than ranks, the model or its quantization
            cannot be divided, or a flag works with one process only.
    """
    ranks = args.tensor_parallel_size
    if ranks == 1:
        return config
    if ranks > hardware.cores:
        raise _error(ranks, f"each rank needs its own core, and this machine has {hardware.cores}.")
    if args.num_threads is not None and args.num_threads < ranks:
        raise _error(ranks, f"each rank needs a thread, and num_threads is {args.num_threads}.")
    for asked, what in (
        (config.device != "cpu", "only one process can use a GPU; add --device cpu."),
        (args.ops == "reference", "the reference ops work with one process only."),
        (bool(args.cpu_offload_gb), "cpu_offload_gb works with one process only."),
    ):
        if asked:
            raise _error(ranks, what)
    threads = max(1, config.num_threads // ranks)
    config = replace(config, tensor_parallel_size=ranks, num_threads=ranks * threads)
    shared_config(config, 0)  # raises if the model cannot be divided
    notes.append(
        f"tensor_parallel_size {ranks}: {ranks} processes of {threads} "
        f"thread{'s' if threads > 1 else ''}."
    )
    return config


def _error(ranks: int, why: str) -> ConfigError:
    return ConfigError(f"{_FLAG} is {ranks}; {why}", param=_FLAG)
