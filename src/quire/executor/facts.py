"""Facts about a worker: plain values for logs, reports and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.core.config import EngineConfig
from quire.executor.memory import MemoryPlan
from quire.ops.isa import available_isas

if TYPE_CHECKING:
    from quire.ops.interface import Ops
    from quire.runner.model import Model


_SUMMED = (
    "num_threads",
    "weight_bytes",
    "kv_cache_bytes",
    "kv_bytes_per_token",
    "host_kv_bytes",
    "activation_bytes",
    "runtime_bytes",
    "state_bytes",
)
"""Facts that add up over the workers."""


def summed_facts(facts: Mapping[str, object]) -> dict[str, int]:
    """Return those facts of a worker that add up over all of them."""
    return {name: value for name in _SUMMED if isinstance(value := facts[name], int)}


def worker_facts(
    config: EngineConfig, ops: Ops, plan: MemoryPlan, weights: int, model: Model
) -> dict[str, object]:
    """Return the facts of a started worker; `weights` are the bytes of its weights."""
    return {
        "device": config.device,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "isa": ops.isa,
        "best_isa": available_isas()[-1],
        "ops": dict(ops.sources),
        "num_threads": config.num_threads,
        "weight_bytes": weights,
        "kv_cache_bytes": plan.kv_cache_bytes,
        "kv_bytes_per_token": plan.block_bytes // config.block_size,
        "host_kv_bytes": config.tiers.host_bytes(plan.block_bytes, plan.slot_bytes),
        "disk_kv_bytes": config.tiers.disk_bytes,
        "num_blocks": plan.num_blocks,
        "num_blocks_formula": plan.formula,
        "state_bytes": plan.state_bytes,
        "num_state_slots": plan.states.num_slots if plan.states else 0,
        "activation_bytes": plan.activations,
        "runtime_bytes": plan.runtime,
        "model": model.description,
    }
