"""Put together what an engine, its system and its configuration say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.op_profile import OpProfile
from quire.explain.cards import Card
from quire.explain.evidence import Evidence, Platform
from quire.explain.limits import card_limits, load_limits
from quire.explain.probe import Watched
from quire.models.weights.pack_cache import is_kept, packable_bytes
from quire.ops.tuning import file_name, read, tuned_folder, untuned
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect
from quire.system.stacks import Stacks


def collect(
    watched: Watched,
    args: EngineArgs,
    config: EngineConfig,
    facts: Mapping[str, Any],
    phases: Mapping[str, float],
    ops: OpProfile | None,
    *,
    offline: bool = False,
    tls: bool = False,
    cards: Sequence[Card] = (),
    stacks: Sequence[Stacks] = (),
) -> Evidence:
    """Return the evidence of one window.

    Args:
        facts, phases: of the started engine; see `messages.Ready`.
        ops: profile of some of its steps.
        cards: GPUs on which it computes.
        stacks: of the API process and of those that compute.
    """
    machine = detect()
    cores, gpu = machine.cores, machine.gpu if config.device == "cuda" else None
    isa, best = facts.get("isa") or "", facts.get("best_isa") or ""
    return Evidence(
        window=watched.window,
        args=args,
        config=replace(config, prefix_caching_hash_seed=0),  # a secret
        cores=cores,
        offline=offline,
        ops=ops if ops is not None and ops.steps else None,
        limits=card_limits(gpu.name) if gpu is not None else load_limits(cores),
        host=watched.host,
        surroundings=msgspec.structs.replace(watched.surroundings, cards=list(cards)),
        platform=Platform(
            isa,
            best,
            _tuned(isa, config),
            phases.get("load_weights", 0.0),
            _unkept(config),
        ),
        halves=watched.halves,
        tls=tls,
        stacks=list(stacks),
    )


def _tuned(isa: str, config: EngineConfig) -> int:
    """Return for how many shapes this machine's file of tuned kernels has values."""
    file = tuned_folder() / file_name(untuned(isa, config.num_threads))
    try:
        found = read(file.read_bytes())
    except (OSError, ValueError):
        return 0
    return len(found.gemm) + len(found.attention)


def _unkept(config: EngineConfig) -> int:
    """Return the bytes of weights that the next start of one process packs again."""
    size = packable_bytes(config) if config.device == "cpu" else 0
    processes = config.tensor_parallel_size * config.pipeline_parallel_size
    if not size or processes > 1:  # each process keeps its own share
        return 0
    return 0 if size <= config.pack_cache_bytes and is_kept(config) else size
