"""Compute how many KV blocks fit: one formula, which is logged, and an error that explains it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from quire.core.config import EngineConfig, StateConfig
from quire.core.errors import OutOfMemoryError
from quire.kv.bounds import LEAST_SPACING, SNAPSHOTS_PER_PROMPT, most_blocks
from quire.models.memory import (
    decoded_bytes,
    draft_weight_bytes,
    kv_bytes_of,
    lora_bytes,
    state_bytes,
)
from quire.models.vision.layout import tower_activation_bytes
from quire.models.weights.offload import held_weight_bytes
from quire.system.records import dataclass

FLOAT32 = 4
PREFIX_SHARE = 4
"""With prefix caching the cache may exceed what running sequences can fill by one part in this
many. Otherwise, under full load, every prefix would be evicted before its reuse."""
MOST_EMPTY_BLOCKS = 2**16
"""Most blocks that hold no keys and values, unless one sequence needs more."""
STATE_SHARE = 4
"""With attention, states get one part in this many of the memory for both."""
SNAPSHOTS = 2
"""Snapshots of a running sequence: its first or last one, and the next."""
WIDE_SPACING = 1024
"""Most tokens between the snapshots of a prompt, without attention."""
RUNTIME_BYTES = 128 * 2**20
"""Upper bound of what Python and the engine use before the weights, without the tokenizer. 52 MiB
were measured with `LLM`; that is rounded up to one `resident.RUNTIME_STEP`, and one is to spare."""
TOKEN_BYTES = 1024
"""Upper bound of a tokenizer's memory per token; `LLM` has it in the engine's process. 767 bytes
were measured with a BPE tokenizer of 151,936 tokens."""
GPU_RUNTIME_BYTES = 2**30
"""Assumed use of an otherwise idle GPU: a context, and torch's kernels."""
PROMPT_LOGPROB_ROWS = 64
"""Rows of logits that are computed at once for prompt log-probabilities."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The use of memory in bytes, and the resulting number of KV blocks.

    Attributes:
        runtime: what this process used before the weights.
        activations: upper bound of a step's temporary tensors.
        formula: the computation of `num_blocks`, with its numbers.
        states: slots for states, of a model with recurrent layers.
        slot_bytes: of each of these slots.
    """

    num_blocks: int
    block_bytes: int
    runtime: int
    weights: int
    activations: int
    formula: str
    states: StateConfig | None = None
    slot_bytes: int = 0

    @property
    def kv_cache_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def state_bytes(self) -> int:
        return self.states.num_slots * self.slot_bytes if self.states else 0

    @property
    def cache_bytes(self) -> int:
        return self.kv_cache_bytes + self.state_bytes


def plan_memory(
    config: EngineConfig, *, runtime: int, weights: int, kv_bytes_per_token: int
) -> MemoryPlan:
    """Choose the number of KV blocks.

    An explicit `num_blocks` is used, however small: requests that it cannot hold are refused on
    arrival. Otherwise the cache gets `kv_cache_memory_bytes`, or the rest of the budget but at most
    `useful_blocks`; one sequence of `max_model_len` must fit.

    Args:
        runtime: bytes that this process used before the weights; on a GPU, all bytes in use there.
        kv_bytes_per_token: bytes of one token's keys and values in all layers.

    Raises:
        OutOfMemoryError: one sequence does not fit; the message has a table of the memory's use.
    """
    block_bytes = config.block_size * kv_bytes_per_token
    activations = activation_bytes(config)
    useful = useful_blocks(config)
    parts, besides = fixed_parts(config, runtime, weights, activations)
    states, slot_bytes, room = None, state_bytes(config.model), 0
    if slot_bytes:
        cache = config.kv_cache_memory_bytes
        room = config.memory_budget_bytes - sum(parts.values()) if cache is None else cache
        states = plan_states(config, max(0, room), slot_bytes, kv_bytes_per_token)
        parts["states"] = states.num_slots * slot_bytes
        besides += f" - {parts['states']} states"
    if config.num_blocks is not None:
        blocks, formula = config.num_blocks, f"{config.num_blocks} (num_gpu_blocks_override)"
    elif config.kv_cache_memory_bytes is not None:
        cache = config.kv_cache_memory_bytes
        left = max(0, cache - parts.get("states", 0))
        blocks = left // block_bytes if block_bytes else _blocks_of_hashes(config)
        given = f"{cache} (kv_cache_memory_bytes)"
        if states is not None:
            given = f"({cache} kv_cache_memory_bytes - {parts['states']} states)"
        formula = f"{given} // {block_bytes} per block = {blocks}"
    else:
        left = max(0, config.memory_budget_bytes - sum(parts.values()))
        blocks = min(left // block_bytes, useful) if block_bytes else _blocks_of_hashes(config)
        formula = (
            f"min(({config.memory_budget_bytes} budget - {runtime} runtime - {weights} weights "
            f"- {activations} activations{besides}) // {block_bytes} per block, "
            f"{useful} useful) = {blocks}"
        )
    if states is not None and config.num_blocks is None and parts["states"] > room:
        blocks = 0
    if config.num_blocks is None and blocks < blocks_per_sequence(config):
        raise _does_not_fit(config, parts, blocks, block_bytes)
    return MemoryPlan(
        blocks, block_bytes, runtime, weights, activations, formula, states, slot_bytes
    )


def most_kv_blocks(config: EngineConfig, kv_bytes_per_token: int) -> int:
    """Return a number of blocks that `plan_memory` does not exceed, whatever else uses memory."""
    if config.num_blocks is not None:
        return config.num_blocks
    memory = config.kv_cache_memory_bytes
    if memory is not None:
        return memory // (config.block_size * kv_bytes_per_token)
    return min(
        config.memory_budget_bytes // (config.block_size * kv_bytes_per_token),
        useful_blocks(config),
    )


def fixed_parts(
    config: EngineConfig, runtime: int, weights: int, activations: int
) -> tuple[dict[str, int], str]:
    """Return what is needed beside states and blocks, and the end of its part of the formula."""
    parts = {"runtime": runtime, "weights": weights, "activations": activations}
    encoder_cache = config.images.cache_bytes if config.images else 0
    besides = ""
    for name, size in (("adapters", lora_bytes(config)), ("encoder cache", encoder_cache)):
        if size:
            parts[name] = size
            besides += f" - {size} {name}"
    return parts, besides


def _blocks_of_hashes(config: EngineConfig) -> int:
    """Return the blocks of a model without keys and values, which only find states."""
    return max(blocks_per_sequence(config), min(useful_blocks(config), MOST_EMPTY_BLOCKS))


def plan_states(
    config: EngineConfig, free: int, slot_bytes: int, kv_bytes_per_token: int
) -> StateConfig:
    """Choose the number of state slots, and how often a long prompt leaves a snapshot.

    States get a part of the memory, and all of it without attention, but at most what
    `max_num_seqs` sequences and their snapshots use. The snapshots of a prompt, beyond the first
    few, take at most as much memory as its keys and values.

    Args:
        free: bytes for states, keys and values.
    """
    per_request, size = config.states_per_request, config.block_size
    spacing = WIDE_SPACING
    if kv_bytes_per_token:
        spacing = max(LEAST_SPACING, slot_bytes // kv_bytes_per_token)
        free //= STATE_SHARE
    spacing = -(-spacing // size) * size
    limits = config.scheduler
    running = limits.max_num_seqs * (per_request + SNAPSHOTS)
    cached = 0
    if config.enable_prefix_caching:
        first = min(SNAPSHOTS_PER_PROMPT, limits.max_model_len // LEAST_SPACING)
        cached = max(useful_blocks(config) * size // spacing, limits.max_num_seqs * first)
    slots = min(free // slot_bytes, running + cached)
    return StateConfig(max(slots, per_request + SNAPSHOTS), per_request, spacing)


def expected_plan(config: EngineConfig) -> MemoryPlan:
    """Return the plan of an engine that is not loaded, as if a process needed nothing else.

    Raises:
        OutOfMemoryError: one sequence does not fit.
    """
    return plan_memory(
        config,
        runtime=0,
        weights=held_weight_bytes(config) + draft_weight_bytes(config),
        kv_bytes_per_token=kv_bytes_of(config),
    )


def longest_context(
    config: EngineConfig, *, runtime: int, weights: int, kv_bytes_per_token: int
) -> int:
    """Return the longest sequence that fits, in tokens: `max_model_len`, or else whole blocks; 0 if
    none fits. The arguments are those of `plan_memory`."""

    def fails(num_tokens: int) -> bool:
        limits = replace(config.scheduler, max_model_len=num_tokens)
        try:
            plan_memory(
                replace(config, scheduler=limits),
                runtime=runtime,
                weights=weights,
                kv_bytes_per_token=kv_bytes_per_token,
            )
        except OutOfMemoryError:
            return True
        return False

    limit, size = config.scheduler.max_model_len, config.block_size
    if not fails(limit):
        return limit
    return size * bisect_left(range(1, limit // size + 1), True, key=lambda n: fails(n * size))


def blocks_per_sequence(config: EngineConfig) -> int:
    """Return the most blocks that a sequence of `max_model_len` tokens holds at once."""
    limits = config.scheduler
    return most_blocks(
        limits.max_model_len,
        config.block_size,
        config.model.common_window,
        limits.max_num_batched_tokens,
    )


def useful_blocks(config: EngineConfig) -> int:
    """Return the number of blocks beyond which memory would be idle: `max_num_seqs` full sequences,
    and with prefix caching some for the prefixes of finished ones.

    If prompts are computed whole, nothing outlives a step.
    """
    limits = config.scheduler
    if limits.whole_prompts:  # one step's tokens; each sequence's last block is partly used
        return limits.max_num_batched_tokens // config.block_size + limits.max_num_seqs
    blocks = limits.max_num_seqs * blocks_per_sequence(config)
    return blocks + (blocks // PREFIX_SHARE if config.enable_prefix_caching else 0)


def activation_bytes(config: EngineConfig) -> int:
    """Return the bytes of the largest step's temporary tensors, as if all were float32.

    Per token: the residual stream and its copies, q, k, v, attention's output and the MLP's inner
    layer. Also the logits, twice, the rotary table, which is permanent, the largest image in its
    tower, and the largest weight that a GPU's kernels decode. Plans of steps with and without given
    rows have their tensors each.
    """
    model, limits = config.model, config.scheduler
    inner = max(model.intermediate_size, model.borrower_mlp or 0) * (
        2 if config.lora and model.gated_mlp else 1
    )
    if (moe := model.moe) is not None:
        inner = (inner if moe.layers else moe.shared_size) + moe.num_experts
        # Of each choice the token's input, the inner layer and the result.
        inner += moe.route.top_k * (2 * model.hidden_size + moe.intermediate_size) // 4
    attention = max(
        (2 * model.num_attention_heads + 2 * heads) * dim
        for heads, dim in map(model.kv_shape, model.layers)
    )
    if (latent := model.latent) is not None:
        per_head = latent.head + 2 * latent.rank + latent.value_dim
        attention = model.num_attention_heads * per_head + (latent.q_rank or 0) + latent.row
    if (recurrent := model.recurrent) is not None:
        attention = max(attention, 8 * recurrent.channels)
    own_inputs = 4 * model.num_hidden_layers * model.own_input
    token = 4 * model.hidden_size + attention + 4 * inner + own_inputs
    if model.norm_rank is not None:  # gathered from all ranks
        token += model.norm_rank[1] * (inner + attention)
    rows = max(limits.max_num_seqs, PROMPT_LOGPROB_ROWS)
    rotations = limits.max_model_len * model.rope.rotary_dim if model.rope else 0
    logits = model.vocab_size if model.lm_head else model.num_labels
    if (share := config.share) is not None and share.stages > 1:  # rows between stages
        token += config.steps_in_flight * (model.hidden_size + model.own_columns)
        logits *= model.in_last_stage
    plans = 2 if config.images or config.enable_prompt_embeds else 1
    step = plans * limits.max_num_batched_tokens * token + 2 * rows * logits
    return FLOAT32 * (step + rotations) + tower_activation_bytes(config) + decoded_bytes(config)


def expected_runtime(config: EngineConfig) -> int:
    """Return an upper bound of the bytes in use before the weights are loaded."""
    if config.device != "cpu":
        return GPU_RUNTIME_BYTES
    tokens = config.model.vocab_size if config.tokenizer_path is not None else 0
    return RUNTIME_BYTES + TOKEN_BYTES * tokens


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the system or a GPU has refused memory. Torch raises RuntimeErrors then: of a
    class of its own for GPUs, and of none for the host."""
    named = any(each.__name__ == "OutOfMemoryError" for each in type(error).__mro__)
    return isinstance(error, MemoryError) or named or "can't allocate memory" in str(error)


def cannot_allocate(plan: MemoryPlan) -> OutOfMemoryError:
    """Return the error for a KV cache of a requested size that the system refuses."""
    return OutOfMemoryError(
        f"The system refuses {plan.kv_cache_bytes / 2**30:,.1f} GiB for the KV cache: "
        f"{plan.formula} of {plan.block_bytes} bytes each.",
        fix="Lower --num-gpu-blocks-override or --kv-cache-memory-bytes, or unset them.",
        param="--num-gpu-blocks-override",
    )


def _does_not_fit(
    config: EngineConfig, parts: dict[str, int], blocks: int, block_bytes: int
) -> OutOfMemoryError:
    """Return the error, with the table and the flags that would change it."""
    limit = config.scheduler.max_model_len
    wanted = blocks_per_sequence(config) * block_bytes
    rows: list[tuple[str, int, str]] = []
    if config.kv_cache_memory_bytes is not None:
        flag = "--kv-cache-memory-bytes"
        rows.append(("for the KV cache", config.kv_cache_memory_bytes, flag))
    else:
        flag = "--gpu-memory-utilization"
        rows.append(("budget", config.memory_budget_bytes, flag))
        rows += [(f"- {name}", size, "") for name, size in parts.items()]
        left = config.memory_budget_bytes - sum(parts.values())
        rows.append(("= for the KV cache", left, ""))
    rows.append(("one sequence needs", wanted, f"--max-model-len {limit}"))
    table = "\n".join(
        f"  {name:<20}{size / 2**20:>12,.1f} MiB  {note}".rstrip() for name, size, note in rows
    )
    fixes = [f"raise {flag}"]
    if blocks > 0:
        fixes.insert(0, f"lower --max-model-len to {blocks * config.block_size} or less")
    else:
        fixes += ["lower --max-num-batched-tokens or --max-num-seqs", "use a smaller model"]
    return OutOfMemoryError(
        f"The KV cache cannot hold one sequence of {limit} tokens:\n{table}\n",
        fix=f"To fix it, {', or '.join(fixes)}.",
        param=flag,
    )
