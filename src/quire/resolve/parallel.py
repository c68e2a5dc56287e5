"""Check whether several processes can share a model, and divide its layers among stages."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec

from quire.core.config import ON_TORCH, ClusterConfig, EngineConfig, SchedulerConfig
from quire.core.errors import ConfigError
from quire.models.stages import partition
from quire.models.weights.shares import worker_configs
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import value_error
from quire.system import env
from quire.system.hardware import Hardware

_RANKS, _STAGES = "tensor_parallel_size", "pipeline_parallel_size"
_PARTITION = "VLLM_PP_LAYER_PARTITION"
MOST_PORT = 2**16 - 1
_OWN_FLAGS = {
    "distributed_executor_backend", "master_addr", "master_port", "profiler_config",
    "data_parallel_size", "data_parallel_backend", "data_parallel_size_local",
    "data_parallel_address", "data_parallel_rpc_port",
}  # fmt: skip
"""Arguments of node 0 that are not those of machines started by Ray."""


def with_workers(
    args: EngineArgs, config: EngineConfig, hardware: Hardware, notes: list[str]
) -> EngineConfig:
    """Return the configuration with its layers divided among the stages, and its threads evenly
    among all workers.

    Raises:
        ConfigError: there are fewer cores or threads than workers, the model or its quantization
            cannot be divided, or a flag works with one process only.
    """
    ranks, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    nnodes = args.nnodes
    on_ray = args.distributed_executor_backend == "ray"
    if on_ray and stages == 1:
        notes.append("distributed_executor_backend ray: one stage needs no other machine.")
    elif on_ray and nnodes == 1:
        nnodes = stages
    if stages % nnodes:
        why = f"pipeline_parallel_size is {stages}; each machine has as many stages as the others."
        raise value_error(args, "nnodes", why, f"Set --pipeline-parallel-size {nnodes}.")
    if (last_port := args.master_port + max(0, nnodes - 2)) > MOST_PORT:
        why = f"machine {nnodes - 2} listens on port {last_port}, and the highest is {MOST_PORT}."
        raise value_error(args, "master_port", why, f"Set at most {MOST_PORT - nnodes + 2}.")
    workers = ranks * stages // nnodes  # on each machine
    if ranks * stages == 1:
        return config
    _check(args, config, hardware, workers)
    threads = max(1, config.num_threads // workers)
    cluster = ClusterConfig(nnodes, args.master_addr, args.master_port)
    if on_ray and nnodes > 1:
        cluster = replace(cluster, flags=flags_for_ray(args, workers * threads, nnodes))
    config = replace(
        config, tensor_parallel_size=ranks, num_threads=workers * threads, cluster=cluster
    )
    if config.device == "cuda":  # a card's; the ranks get equal parts of the whole
        config = replace(config, memory_budget_bytes=config.memory_budget_bytes * ranks)
    if stages > 1:
        config = _with_stages(config, stages, notes)
    worker_configs(config)  # raises if the model cannot be divided
    each = f"{workers} process{'es' if workers > 1 else ''} "
    if nnodes > 1:
        each += f"on each of {nnodes} machines, "
    each += f"of {threads} thread{'s' if threads > 1 else ''}"
    if ranks > 1:
        notes.append(f"{_RANKS} {ranks}: {each}.")
    if stages > 1:
        note = f"{_STAGES} {stages}: {'' if ranks > 1 else each + ', '}layers "
        note += f"{' + '.join(map(str, config.stage_layers))}."
        if nnodes == 1:
            note += (
                " On one machine each token waits for all stages, one after the other: "
                f"--tensor-parallel-size {workers} is faster."
            )
        notes.append(note)
    return config


def flags_for_ray(args: EngineArgs, threads: int, nnodes: int = 1) -> str:
    """Return the arguments of machines that Ray starts, as JSON; see `ClusterConfig.flags`."""
    given = {
        field.name: value
        for field in fields(args)
        if (value := getattr(args, field.name)) != field.default and field.name not in _OWN_FLAGS
    }
    for name in {"model", "tokenizer", "download_dir"} & given.keys():
        if (path := Path(given[name])).exists():
            given[name] = str(path.resolve())
    return msgspec.json.encode(given | {"nnodes": nnodes, "num_threads": threads}).decode()


def _check(args: EngineArgs, config: EngineConfig, hardware: Hardware, workers: int) -> None:
    """Raise unless the machine has room for its `workers`, and all flags work with several."""
    ranks, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    name = _STAGES if stages > 1 else _RANKS
    each = f"each of the {workers} processes" if ranks > 1 and stages > 1 else "each rank"
    if stages > 1 and ranks == 1:
        each = "each stage"
    if workers > hardware.cores:
        why = f"{each} needs its own core, and this machine has {hardware.cores}."
        raise value_error(args, name, why)
    if args.num_threads is not None and args.num_threads < workers:
        why = f"{each} needs a thread, and num_threads is {args.num_threads}."
        raise value_error(args, name, why)
    for asked, what in (
        (
            hardware.gpu is not None and config.device == "cuda" and ranks > hardware.gpu.count,
            f"each rank needs a GPU, and the driver shows {hardware.gpu and hardware.gpu.count}.",
        ),
        (bool(args.cpu_offload_gb), "cpu_offload_gb works with one process only."),
    ):
        if asked:
            raise value_error(args, name, what)
    if stages == 1:
        return
    layers, last = config.model.num_hidden_layers, config.model.last_cut
    for asked, what in (
        (config.ops in ON_TORCH, f"the {config.ops} ops work with one stage only."),
        (layers < stages, f"the model has {layers} layers, and each stage needs one."),
        (
            last + 1 < stages,
            f"layers {last} to {layers - 1} share keys and values, so they need one stage.",
        ),
        (
            config.num_scheduler_steps > 1,
            "the first stage needs each token before the next pass; omit num_scheduler_steps.",
        ),
    ):
        if asked:
            raise value_error(args, _STAGES, what)


def _with_own_drafts(scheduler: SchedulerConfig, notes: list[str]) -> SchedulerConfig:
    """Return the limits with drafts that follow from each request alone.

    All stages draft for themselves, and must draft the same. They learn of ended answers at
    different times.
    """
    drafts = scheduler.speculative
    if (
        drafts is None
        or drafts.method != "suffix"
        or not drafts.suffix_decoding_max_cached_requests
    ):
        return scheduler
    notes.append(f"{_STAGES}: suffix drafts come from the request's own text, not earlier answers.")
    own = replace(drafts, suffix_decoding_max_cached_requests=0)
    return replace(scheduler, speculative=own)


def _with_stages(config: EngineConfig, stages: int, notes: list[str]) -> EngineConfig:
    """Return the configuration with its layers divided as wished, or by their predicted time."""
    wished = env.layer_partition()
    counts = partition(config, stages) if wished is None else _wished(wished, config, stages)
    config = replace(config, stage_layers=counts)
    if config.model.recurrent is not None:
        for part in worker_configs(config)[:: config.tensor_parallel_size]:
            if not part.model.layers_with("recurrent"):
                raise ConfigError(
                    f"{_STAGES} is {stages}; a stage has no recurrent layer, and each must have "
                    f"one: layers {part.model.layers.start} to {part.model.layers.stop - 1}.",
                    fix=f"Set {_PARTITION}, or use fewer stages.",
                    param=_STAGES,
                )
    deep = 0 if config.images is None else config.model.vision_deep_layers
    if counts[0] < deep:
        raise ConfigError(
            f"{_STAGES} is {stages}; the first stage has {counts[0]} layers, and images add to "
            f"the first {deep}.",
            fix=f"Set {_PARTITION}, use fewer stages, or --language-model-only.",
            param=_STAGES,
        )
    scheduler = replace(config.scheduler, micro_batches=config.steps_in_flight)
    return replace(config, scheduler=_with_own_drafts(scheduler, notes))


def _wished(text: str, config: EngineConfig, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage from a list such as "4,4,3"."""
    layers = config.model.num_hidden_layers
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ConfigError(
            f"{_PARTITION} is {text!r}; it must be {stages} positive numbers, one for each stage, "
            f"that add up to the model's {layers} layers.",
            fix="Correct it or unset it.",
            param=_PARTITION,
        )
    if layers - counts[-1] > (last := config.model.last_cut):
        raise ConfigError(
            f"{_PARTITION} is {text!r}; the layers from {last} on share keys and values, so they "
            "belong to one stage.",
            fix=f"Give the last stage {layers - last} layers or more.",
            param=_PARTITION,
        )
    return counts
