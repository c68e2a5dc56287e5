"""Whether a model fits this machine, before any weight is read: memory, speed, changes.

The code is the engine's own. `resolve.engine` decides the configuration, `plan_memory` the KV
cache, and the step cost model the speed, on this machine's limits if they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from quire.core.config import ON_TORCH, DeviceType, EngineConfig
from quire.core.cost import HardwareProfile, Link, cautious_cpu
from quire.core.errors import ConfigError, OutOfMemoryError
from quire.executor.memory import (
    MemoryPlan,
    activation_bytes,
    blocks_per_sequence,
    expected_runtime,
    fixed_parts,
    plan_memory,
)
from quire.explain.layouts import Layout, layouts
from quire.explain.limits import Limits, profile_of
from quire.explain.pipeline import StageFit, decode_seconds, stage_fits
from quire.models.cost import roofline
from quire.models.memory import kv_bytes_per_token, loaded_bytes, parameter_count
from quire.models.weights.offload import held_weight_bytes, layer_weights
from quire.models.weights.shares import worker_configs, worker_grid
from quire.resolve.arguments import EngineArgs
from quire.resolve.context import AUTO, LEAST_TOKENS
from quire.resolve.device import GIB
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware

TOUCHED_SHARE = {"float32": 0.6, "bfloat16": 0.3, "float16": 0.3}
"""Measured share of the reserved activations that steps touch. The reservation assumes float32
tensors that share no memory."""
PROMPT_LEN = 512
"""Tokens of the prompt whose time is predicted."""
BATCHES = (1, 4, 16, 64)
MOST_CHANGES = 6
OFFLOAD_STEP = 0.25
"""GiB; a proposed --cpu-offload-gb is rounded up to a multiple of it."""


class Speed(msgspec.Struct, frozen=True):
    """The prediction for `sequences` sequences of `context` tokens each.

    Attributes:
        alone_tok_s: tokens/s of one such machine without pipeline stages.
    """

    sequences: int
    context: int
    output_tok_s: float
    itl_ms: float
    alone_tok_s: float


class FitChange(msgspec.Struct, frozen=True):
    """Flags with which the model fits, and the capacity that they give."""

    flags: str
    max_model_len: int
    tokens: int
    sequences: int


class Fit(msgspec.Struct, frozen=True):
    """Memory and speed of a model on this machine; sizes are in bytes.

    Attributes:
        budget: memory for everything, of all machines.
        resident: expected resident size once the KV cache is full. `activations` are an upper
            bound; steps touch a part of them.
        device: the device whose memory is counted.
        weights: in the device's memory; `offloaded` weights are in a mapped file, or for a GPU in
            host memory.
        kv_bytes_per_token: of all layers.
        num_blocks: blocks of `block_size` tokens each.
        fits: whether one sequence of `max_model_len` tokens fits.
        longest: tokens that one sequence alone could have.
        sequences: sequences of `max_model_len` tokens at once.
        measured: whether the machine's limits were measured; else the speed is a guess.
        speed: empty for a GPU, because its limits are not measured.
        prompt_s: seconds until the first token after a prompt of `prompt_len` tokens.
        model_len: the model's longest context. `max_model_len` is less if the user sets it, or if
            the memory holds no more.
        changes: flags that make the model fit, or the whole `model_len` if memory limited it.
        notes: reasons of the automatic choices.
        layouts: what replicas would give; empty if the flags choose one already.
    """

    model: str
    parameters: int
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    max_model_len: int
    model_len: int
    max_num_seqs: int
    num_threads: int
    budget: int
    weights: int
    offloaded: int
    activations: int
    runtime: int
    resident: int
    host_tiers: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    kv_cache: int
    fits: bool
    longest: int
    tokens: int
    sequences: int
    measured: bool
    speed: list[Speed]
    prompt_len: int
    prompt_s: float
    changes: list[FitChange]
    notes: list[str]
    pooling: str | None = None
    """Pooling type; None for a model that generates."""
    device: DeviceType = "cpu"
    disturbance: float = 0.0
    """Cores that other processes used while the limits were measured, if too many."""
    states: int = 0
    """Of recurrent layers, in `num_states` slots."""
    num_states: int = 0
    nnodes: int = 1
    stages: list[StageFit] = []
    layouts: list[Layout] = []


def fit(
    args: EngineArgs, hardware: Hardware, limits: Limits | None, link: Link | None = None
) -> Fit:
    """Return the engine's memory and predicted speed with these arguments on `hardware`.

    Raises:
        QuireError: the engine could not start, for another reason than memory.
    """
    resolved = resolve(args, hardware)
    config = resolved.config
    model = config.model
    memory, fits = memory_of(config)
    tokens = memory.num_blocks * config.block_size
    rates = rates_of(config, limits, link)
    predicted = tokens and config.device == "cpu"
    prompt = min(PROMPT_LEN, config.scheduler.max_model_len - 1)
    return Fit(
        model=args.model,
        parameters=parameter_count(model),
        dtype=config.dtype,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        max_model_len=config.scheduler.max_model_len,
        model_len=model.max_position_embeddings,
        max_num_seqs=config.scheduler.max_num_seqs,
        num_threads=config.num_threads,
        budget=config.memory_budget_bytes * config.cluster.nnodes,
        weights=memory.weights,
        offloaded=loaded_bytes(config) - held_weight_bytes(config),
        activations=memory.activations,
        runtime=memory.runtime,
        resident=memory.runtime
        + memory.weights
        + memory.cache_bytes
        + int(TOUCHED_SHARE[config.dtype] * memory.activations),
        host_tiers=config.tiers.host_bytes(memory.block_bytes, memory.slot_bytes),
        kv_bytes_per_token=memory.block_bytes // config.block_size,
        block_size=config.block_size,
        num_blocks=memory.num_blocks,
        kv_cache=memory.kv_cache_bytes,
        states=memory.state_bytes,
        num_states=memory.states.num_slots if memory.states else 0,
        fits=fits,
        longest=min(tokens, config.scheduler.max_model_len),
        tokens=tokens,
        sequences=memory.num_blocks // blocks_per_sequence(config),
        measured=limits is not None,
        disturbance=limits.disturbance if limits is not None and limits.disturbed else 0.0,
        speed=list(_speeds(config, rates, tokens)) if predicted and not config.pooling else [],
        prompt_len=prompt,
        prompt_s=worker_grid(config).stages_per_node
        * roofline(config, rates).seconds(prompt, 1, prompt, prompt * (prompt + 1) // 2),
        changes=_changes(args, config, fits, hardware),
        notes=resolved.notes,
        pooling=config.pooling.pooling_type if config.pooling else None,
        device=config.device,
        nnodes=config.cluster.nnodes,
        stages=stage_fits(config, rates, PROMPT_LEN),
        layouts=layouts(config, rates, PROMPT_LEN) if predicted and len(args.replicas) == 1 else [],
    )


def memory_of(config: EngineConfig) -> tuple[MemoryPlan, bool]:
    """Return the memory plan of all workers together, and whether the engine would start."""
    workers = worker_configs(config) if config.share is None else [config]
    if len(workers) > 1:
        plans, fit = zip(*map(memory_of, workers), strict=True)
        least = min(plans, key=lambda plan: plan.num_blocks)
        plan = replace(
            least,
            block_bytes=sum(plan.block_bytes for plan in plans),
            runtime=sum(plan.runtime for plan in plans),
            weights=sum(plan.weights for plan in plans),
            activations=sum(plan.activations for plan in plans),
        )
        return plan, all(fit)
    weights = held_weight_bytes(config)
    per_token = kv_bytes_per_token(config.model, config.kv_cache_dtype, config.calculate_kv_scales)
    runtime = expected_runtime(config)
    try:
        plan = plan_memory(config, runtime=runtime, weights=weights, kv_bytes_per_token=per_token)
    except OutOfMemoryError:
        activations = activation_bytes(config)
        parts, _ = fixed_parts(config, runtime, weights, activations)
        held = sum(parts.values())
        left = config.kv_cache_memory_bytes or max(0, config.memory_budget_bytes - held)
        block = config.block_size * per_token
        return MemoryPlan(left // max(1, block), block, runtime, weights, activations, ""), False
    return plan, True


def rates_of(
    config: EngineConfig, limits: Limits | None, link: Link | None = None
) -> HardwareProfile:
    """Return the rates of each machine; cautious ones if its limits were not measured."""
    rates = cautious_cpu(config.num_threads, config.memory_budget_bytes)
    if limits is not None:
        rates = profile_of(limits, config.num_threads)
    return replace(rates, link=link or rates.link)


def _speeds(config: EngineConfig, rates: HardwareProfile, tokens: int) -> Iterator[Speed]:
    """Return the decode speed of full batches with `PROMPT_LEN` tokens of context each."""
    cost = roofline(config, rates)
    for count in sorted({*BATCHES, config.scheduler.max_num_seqs}):
        if count > config.scheduler.max_num_seqs:
            break
        context = min(PROMPT_LEN, config.scheduler.max_model_len, tokens // count)
        if not context:
            break
        alone = cost.seconds(count, count, count * context)
        staged = config.pipeline_parallel_size > 1
        seconds = decode_seconds(config, rates, count, context) if staged else alone
        yield Speed(count, context, count / seconds, 1e3 * seconds, count / alone)


def _changes(
    args: EngineArgs, config: EngineConfig, fits: bool, hardware: Hardware
) -> list[FitChange]:
    """Return single flags, or else pairs, that make the model fit.

    If the model fits and its context was cut to the memory, they make the whole context fit.
    """
    whole = config.model.max_position_embeddings
    automatic = args.max_model_len in (None, AUTO)
    if fits and not (automatic and config.scheduler.max_model_len < whole):
        return []
    if automatic:
        args = replace(args, max_model_len=whole)
        config = replace(config, scheduler=replace(config.scheduler, max_model_len=whole))
    found = _fitting(args, config, hardware)
    return [change for change in found if change.max_model_len == whole or not fits]


def _fitting(args: EngineArgs, config: EngineConfig, hardware: Hardware) -> list[FitChange]:
    single = list(_candidates(args, config))
    pairs = [
        first | second
        for i, first in enumerate(single)
        for second in single[i + 1 :]
        if not first.keys() & second.keys()
    ]
    for proposed in (single, pairs):
        found = [change for c in proposed if (change := _tried(args, c, hardware))]
        if found:
            # The whole context first, then the longest.
            return sorted(found, key=lambda change: -change.max_model_len)[:MOST_CHANGES]
    return []


def _candidates(args: EngineArgs, config: EngineConfig) -> Iterator[dict[str, object]]:
    memory, _ = memory_of(config)
    tokens = memory.num_blocks * config.block_size
    if tokens >= LEAST_TOKENS:
        yield {"max_model_len": tokens}
    if config.kv_cache_memory_bytes is not None:
        wanted = blocks_per_sequence(config) * memory.block_bytes
        yield {"kv_cache_memory_bytes": wanted}
    for share in (0.75, 0.9):
        if share > args.memory_share(config.device):
            yield {"gpu_memory_utilization": share}
    if args.max_num_batched_tokens is None or args.max_num_batched_tokens > 512:
        yield {"max_num_batched_tokens": max(512, args.max_num_seqs)}
    if args.kv_cache_dtype == "auto":
        yield {"kv_cache_dtype": "int8"}
    if config.quantization is None and config.ops not in ON_TORCH:
        yield {"quantization": "int8"}
        yield {"quantization": "int4"}
    can_offload = config.ops != "reference" or config.device == "cuda"
    if can_offload and not args.cpu_offload_gb:
        yield from _offloads(config, memory)


def _offloads(config: EngineConfig, memory: MemoryPlan) -> Iterator[dict[str, object]]:
    """Offload as many weights as the memory lacks, if the layers have that many."""
    layers = layer_weights(config)
    wanted = blocks_per_sequence(config) * memory.block_bytes
    parts, _ = fixed_parts(config, memory.runtime, memory.weights, memory.activations)
    missing = sum(parts.values()) + wanted - config.memory_budget_bytes
    ahead = 2 * sum(layers.values()) // config.model.num_hidden_layers
    steps = -(-(missing + ahead) // int(OFFLOAD_STEP * GIB))
    most = sum(layers.values()) / GIB
    if missing > 0 and steps * OFFLOAD_STEP <= most:
        yield {"cpu_offload_gb": steps * OFFLOAD_STEP}


def _tried(args: EngineArgs, changes: dict[str, object], hardware: Hardware) -> FitChange | None:
    """Return the capacity with these changes; None if the model does not fit.

    If only a shorter context fits, the change includes it.
    """
    try:
        config = resolve(replace(args, **changes), hardware).config  # type: ignore[arg-type]
    except ConfigError:
        return None
    memory, fits = memory_of(config)
    tokens = memory.num_blocks * config.block_size
    if not fits:
        if "max_model_len" in changes or tokens < LEAST_TOKENS:
            return None
        return _tried(args, {**changes, "max_model_len": tokens}, hardware)
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    sequences = memory.num_blocks // blocks_per_sequence(config)
    return FitChange(flags, config.scheduler.max_model_len, tokens, sequences)
