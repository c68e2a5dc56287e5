"""Create the parts of a worker from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quire.core import batch
from quire.core.config import EngineConfig, SchedulerConfig, StateConfig
from quire.core.dtypes import dtype_of
from quire.core.sampling_params import SamplingParams
from quire.executor.memory import MemoryPlan, cannot_allocate, is_out_of_memory, plan_memory
from quire.executor.peers import Peers
from quire.executor.resident import resident_bytes, rounded
from quire.models.adapters import named_targets, own_deltas
from quire.models.decoder import Decoder
from quire.models.memory import draft_weight_bytes, kv_bytes_of
from quire.models.weights.loader import load_tower
from quire.models.weights.offload import held_weight_bytes
from quire.models.weights.pack_cache import PackCache
from quire.ops.device import Accelerator
from quire.ops.interface import Ops
from quire.ops.lora import LoraTable
from quire.runner.images import EncoderCache
from quire.runner.runner import ModelRunner
from quire.runner.stage_rows import StageRows
from quire.sampling.grammars import Grammars
from quire.spec.proposers import acceptance, new_proposer
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from quire.lora.pool import AdapterPool
    from quire.parallel.stage import Stage

logger = logging.getLogger(__name__)


def fit_memory(
    config: EngineConfig,
    accelerator: Accelerator | None,
    cache: PackCache | None,
    peers: Peers | None,
) -> MemoryPlan:
    """Return the memory plan with the smallest numbers of blocks and state slots of all workers.

    Raises:
        OutOfMemoryError: one sequence does not fit.
    """
    held = rounded(accelerator.memory()[0]) if accelerator else None
    plan = plan_memory(
        config,
        runtime=resident_bytes(read_ahead_bytes(cache)) if held is None else held,
        weights=held_weight_bytes(config) + draft_weight_bytes(config),
        kv_bytes_per_token=kv_bytes_of(config),
    )
    if peers is not None:
        states = plan.states
        blocks, slots = peers.agree(plan.num_blocks, states.num_slots if states else 0)
        states = replace(states, num_slots=slots) if states else None
        plan = replace(plan, num_blocks=blocks, states=states)
    logger.info("KV cache blocks of %d tokens: %s", config.block_size, plan.formula)
    return plan


def read_ahead_bytes(cache: PackCache | None) -> int:
    """Return the bytes of weights that the cache has read into memory, once it has read all."""
    stored = (cache.linears() if cache else {}).values()
    return sum(linear.nbytes - linear.streamed_bytes for linear in stored)


def open_adapters(config: EngineConfig, tables: Mapping[str, LoraTable]) -> AdapterPool | None:
    """Return the adapter pool over `models.adapters.lora_tables`; None if LoRA is off."""
    if config.lora is None:
        return None
    from quire.lora.pool import AdapterPool

    whole = config.share.model if config.share else config.model
    return AdapterPool(
        tables,
        named_targets(whole),
        config.lora,
        dtype_of(config.dtype),
        partial(own_deltas, config),
    )


def open_grammars(config: EngineConfig) -> Grammars:
    """Return the grammars of structured output; the tokenizer is read on first use."""
    return Grammars(
        partial(_tokenizer, config),
        config.model.vocab_size,
        marks_path=config.marks_path,
        rank=config.share.worker if config.share else 0,
    )


def new_runner(
    config: EngineConfig,
    plan: MemoryPlan,
    decoder: Decoder,
    ops: Ops,
    grammars: Grammars,
    adapters: AdapterPool | None,
    stage: Stage | None = None,
) -> ModelRunner:
    """Return the model with its KV cache.

    Raises:
        OutOfMemoryError: the system refuses the memory.
        RuntimeError: torch or a driver fails in another way.
    """
    try:
        tower, images = load_tower(config, ops), config.images
        encoder = EncoderCache(tower, images.cache_bytes) if tower and images else None
        proposer, reader = new_proposer(config, plan.num_blocks, ops, decoder)
        return ModelRunner(
            config,
            plan.num_blocks,
            decoder,
            ops,
            grammars=grammars,
            adapters=adapters,
            proposer=proposer,
            agrees=acceptance(config.scheduler),
            reader=reader,
            states=plan.states,
            stage=None if stage is None else StageRows(stage, ops, config.model),
            encoder=encoder,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise cannot_allocate(plan) from error


def warm_up_steps(
    limits: SchedulerConfig, states: StateConfig | None = None
) -> tuple[batch.SchedulerOutput, batch.SchedulerOutput]:
    """Return a step with one short sequence, and one that removes it.

    What it leaves in block 0 and in states has no effect: they are written before they are read.
    """
    name = "warm-up"
    tokens = [0] * min(4, limits.max_model_len - 1, limits.max_num_batched_tokens)
    new_blocks, state = batch.block_columns([(0, 0, [0])]), None
    if states is not None:
        new_blocks = batch.without_snapshots(new_blocks)
        state = batch.FirstState(batch.NO_STATE, [*range(states.per_request)])
    new = batch.NewSequence(name, tokens, len(tokens), SamplingParams(temperature=0.0), state=state)
    first = batch.SchedulerOutput(
        step=0,
        request_ids=[name],
        num_scheduled_tokens=np.array([len(tokens)]),
        num_computed_tokens=np.array([0]),
        new_blocks=new_blocks,
        new_sequences=[new],
        removed=[],
        total_num_scheduled_tokens=len(tokens),
    )
    nothing = np.zeros(0, dtype=np.int64)
    return first, batch.SchedulerOutput(
        0, [], nothing, nothing, batch.block_columns([]), [], [name], 0
    )


def _tokenizer(config: EngineConfig) -> Tokenizer:
    path = config.tokenizer_path
    return load_tokenizer(path if path is None else Path(path), vocab_size=config.model.vocab_size)
