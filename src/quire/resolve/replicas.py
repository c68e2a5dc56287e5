"""The share of the machine that each replica of an engine gets."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import value_error
from quire.resolve.parallel import flags_for_ray
from quire.system.hardware import Hardware

_NAME = "data_parallel_size"
_HALVES = ("prefill_replicas", "decode_replicas")
_WHOLE = "each replica is on one machine; omit --nnodes."


def replica_share(
    args: EngineArgs, hardware: Hardware, notes: list[str]
) -> tuple[EngineArgs, Hardware]:
    """Return one replica's arguments and hardware: equal parts of the threads, cores, memory and
    GPUs.

    Other sizes, such as that of the KV cache, are those of each replica.

    Raises:
        ConfigError: there are fewer cores or threads than replicas, or a flag works with one
            replica only.
    """
    _check_numbers(args)
    count = len(args.replicas)
    for name, other in (_HALVES, _HALVES[::-1]):
        if getattr(args, name) and not getattr(args, other):
            raise ConfigError(f"{name} needs {other}.", param=name)
    prefill, decode = args.prefill_replicas, args.decode_replicas
    if prefill and count != prefill + decode:
        raise ConfigError(
            f"prefill_replicas {prefill} and decode_replicas {decode} are {prefill + decode}, but "
            f"this server has {count} replicas.",
            fix=f"Omit {_NAME} and the flags of other load balancers.",
            param=_NAME,
        )
    if args.far_replicas or (args.data_parallel_backend == "ray" and count > 1):
        _check_for_others(args)
    if args.data_parallel_backend == "ray" or (here := count - len(args.far_replicas)) < 2:
        return args, hardware
    return _share(args, hardware, here, notes)


def _share(
    args: EngineArgs, hardware: Hardware, count: int, notes: list[str]
) -> tuple[EngineArgs, Hardware]:
    """Divide this machine among `count` replicas; see `replica_share`."""
    name = "data_parallel_size_local" if args.far_replicas else _NAME
    threads, ranks = args.num_threads, args.tensor_parallel_size
    gpus = hardware.gpu.count if hardware.gpu else 0
    for asked, why in (
        (count > hardware.cores, f"each replica needs a core; there are {hardware.cores}."),
        (
            threads is not None and threads < count,
            f"each replica needs a thread, and num_threads is {threads}.",
        ),
        (
            args.device == "cuda" and gpus < count * ranks,
            f"each replica needs {ranks} of the GPUs, and the driver shows {gpus}.",
        ),
        (args.nnodes > 1, _WHOLE),
    ):
        if asked:
            raise ConfigError(f"{name} is {count}; {why}", param=name)
    share = replace(
        hardware,
        cores=hardware.cores // count,
        memory_bytes=hardware.memory_bytes // count,
        available_bytes=hardware.available_bytes // count,
        gpu=hardware.gpu and replace(hardware.gpu, count=gpus // count),
    )
    notes.append(
        f"{name} {count}: the machine is divided among {count} replicas. All that follows is one "
        f"replica's: {count} times as many threads and as much memory are used."
    )
    if threads is not None:
        args = replace(args, num_threads=threads // count)
    return args, share


def _check_numbers(args: EngineArgs) -> None:
    """Raise unless this server's replicas are some of all, as their numbers say."""
    hybrid, total = args.data_parallel_hybrid_lb, args.data_parallel_size
    rank, local = args.data_parallel_rank, args.data_parallel_size_local
    external = args.data_parallel_external_lb or rank is not None
    if not args.replicas:
        why = "this machine has no replica."
        raise value_error(args, "data_parallel_size_local", why, "Set at least 1.")
    first, last = args.replicas[0], args.replicas[-1]
    for asked, name, why in (
        (external and rank is None, "data_parallel_external_lb", "it needs data_parallel_rank."),
        (external and hybrid, "data_parallel_hybrid_lb", "data_parallel_rank is for another mode."),
        (
            local is not None and local > total,
            "data_parallel_size_local",
            f"all machines together have {total} replicas (data_parallel_size).",
        ),
        (
            args.data_parallel_backend == "ray" and local not in (None, total),
            "data_parallel_size_local",
            "Ray chooses the machines; omit it.",
        ),
        (
            args.data_parallel_start_rank > 0 and not hybrid,
            "data_parallel_start_rank",
            "the replica is data_parallel_rank."
            if external
            else "set data_parallel_size_local, too; without it, the first replica is 0.",
        ),
        (
            last >= total,
            "data_parallel_rank" if external else "data_parallel_start_rank",
            f"of {total} replicas (data_parallel_size), this server would have {first} to {last}.",
        ),
        (
            (external or hybrid) and args.data_parallel_backend == "ray",
            "data_parallel_backend",
            "it is for replicas behind one server; omit the flags of other load balancers.",
        ),
    ):
        if asked:
            raise value_error(args, name, why)


def with_ray(args: EngineArgs, config: EngineConfig, notes: list[str]) -> EngineConfig:
    """Return the configuration with what a machine needs on which Ray starts a replica, if Ray
    does."""
    check_device(args, config)
    count, threads = len(args.replicas), config.num_threads
    if args.data_parallel_backend != "ray":
        return config
    if count == 1:
        notes.append("data_parallel_backend ray: one replica needs no other machine.")
        return config
    notes.append(f"{_NAME} {count}: Ray starts each replica on a machine with {threads} free CPUs.")
    flags = flags_for_ray(args, threads)
    return replace(config, cluster=replace(config.cluster, flags=flags))


def check_device(args: EngineArgs, config: EngineConfig) -> None:
    """Raise if replicas on several machines would use GPUs."""
    if config.device == "cuda" and args.far_replicas:
        raise value_error(
            args,
            "data_parallel_size_local",
            "replicas on other machines use CPUs.",
            "Add --device cpu.",
        )


def _check_for_others(args: EngineArgs) -> None:
    """Raise unless each replica can be on any machine."""
    name = "data_parallel_size_local" if args.far_replicas else "data_parallel_backend"
    for asked, why in (
        (args.device == "cuda", "replicas on other machines use CPUs; add --device cpu."),
        (args.nnodes > 1 or args.distributed_executor_backend == "ray", _WHOLE),
        (args.kv_transfer_config, "blocks are handed over within a machine only."),
        (args.prefill_replicas, "prompts and answers are divided within a machine only."),
    ):
        if asked:
            raise value_error(args, name, why)
