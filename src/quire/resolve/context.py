"""The maximum length of a sequence: from the flag, the model and the memory."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.executor.memory import expected_runtime, longest_context
from quire.executor.resident import RUNTIME_STEP
from quire.models.memory import draft_weight_bytes, kv_bytes_of
from quire.models.weights.offload import held_weight_bytes
from quire.models.weights.shares import worker_configs
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import value_error

AUTO = -1
"""As `max_model_len`: the same as unset."""
LEAST_TOKENS = 1024
"""The shortest context that Quire chooses or proposes."""


def asked_context(args: EngineArgs, model: ModelConfig) -> int:
    """Return the flag's value, or the model's own limit.

    Raises:
        ConfigError: the flag exceeds the model's positions, or is below 2.
        CheckpointError: the model has a single position.
    """
    limit, asked = model.max_position_embeddings, args.max_model_len
    if limit < 2:
        raise CheckpointError(
            f"config.json: the model has {limit} position; a prompt and its answer need 2.",
            param="max_position_embeddings",
        )
    if asked is None or asked == AUTO:
        asked = limit
    if asked < 2:
        why = "a token of the prompt and one of the output are 2."
        raise value_error(args, "max_model_len", why, "Set --max-model-len to at least 2.")
    if asked > limit:
        fix = f"Lower --max-model-len to {limit}, or leave it out."
        if model.rope is not None and model.rope.scaling in ("default", "linear"):
            override = f"""--hf-overrides '{{"max_position_embeddings": {asked}}}'"""
            fix = f"{fix} If the model was trained for more, pass {override}."
        raise value_error(args, "max_model_len", f"the model's positions end at {limit}.", fix)
    return asked


def with_fitting_context(args: EngineArgs, config: EngineConfig, notes: list[str]) -> EngineConfig:
    """Return the configuration; without the flag, its context is reduced until it fits into memory.

    The engine process's other memory is not known yet. A generous estimate ensures that the same
    flags give the same context on a machine. If not even LEAST_TOKENS fit, the context stays whole,
    and the start fails with a table of the memory.
    """
    if args.max_model_len not in (None, AUTO):
        return config
    length = min(
        longest_context(
            held,
            runtime=expected_runtime(config) + 2 * RUNTIME_STEP,
            weights=held_weight_bytes(held) + draft_weight_bytes(held),
            kv_bytes_per_token=kv_bytes_of(held),
        )
        for held in worker_configs(config)
    )
    limits = config.scheduler
    if length == limits.max_model_len or length < LEAST_TOKENS:
        notes.append(f"max_model_len {limits.max_model_len}: the model's own limit.")
        return config
    notes.append(
        f"max_model_len {length} of the model's {limits.max_model_len}: memory holds no more "
        "tokens next to the weights. `quire plan` lists flags that allow more."
    )
    return replace(config, scheduler=replace(limits, max_model_len=length))
