"""How many KV blocks and states the tiers below the KV cache hold."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import TierConfig
from quire.core.kv_sharing import TransferConfig
from quire.core.model_config import ModelConfig
from quire.executor.memory import MOST_EMPTY_BLOCKS, STATE_SHARE
from quire.models.memory import kv_bytes_per_token, state_bytes
from quire.resolve.arguments import EngineArgs
from quire.resolve.device import GIB
from quire.resolve.flag_values import value_error


def host_tiers(
    args: EngineArgs, model: ModelConfig, kv_dtype: str, transfer: TransferConfig | None = None
) -> TierConfig:
    """Return the number of blocks, and of states, in the tiers below the KV cache."""
    token = kv_bytes_per_token(model, kv_dtype, args.calculate_kv_scales)
    tiers = divided(args, args.block_size * token, state_bytes(model))
    return replace(tiers, read_only=transfer is not None and not transfer.produces)


def divided(args: EngineArgs, block_bytes: int, slot_bytes: int) -> TierConfig:
    """Return the same for a model whose blocks and states take so many bytes.

    Args:
        slot_bytes: of one sequence's states; 0 without recurrent layers.
    """
    for name in ("kv_offloading_size", "kv_offloading_dir"):
        if getattr(args, name) and not args.enable_prefix_caching:
            raise value_error(args, name, "without prefix caching there are no blocks to offload.")

    def count(name: str, size: float, each: int, what: str) -> int:
        number = int(size * GIB) // each if each else 0
        if size and not number:
            raise value_error(args, name, f"a single {what} takes {each} bytes.")
        return number

    swap, offload, disk = args.swap_space, args.kv_offloading_size, args.kv_offloading_disk_size
    directory = args.kv_offloading_dir
    if not block_bytes and not slot_bytes:
        for name in ("swap_space", "kv_offloading_size", "kv_offloading_dir"):
            if getattr(args, name):
                raise value_error(args, name, "the model has no keys and values to store.")
        return TierConfig()
    if directory:
        count("kv_offloading_disk_size", disk, block_bytes + slot_bytes, "KV block")
    states, asked = 0, "kv_offloading_size"
    if slot_bytes:  # a preempted request's blocks and states are kept like those of a prefix
        asked = "swap_space" if swap else asked
        swap, offload = 0.0, swap + offload if args.enable_prefix_caching else 0.0
        share = STATE_SHARE if block_bytes else 1
        states = count(asked, offload / share, slot_bytes, "state")
        offload -= offload / share
    empty = MOST_EMPTY_BLOCKS if states and not block_bytes else 0  # they only find states
    return TierConfig(
        num_swap_slots=count("swap_space", swap, block_bytes, "KV block"),
        num_offload_slots=empty or count(asked, offload, block_bytes, "KV block"),
        num_state_slots=states,
        directory=directory,
        disk_bytes=int(disk * GIB) if directory else 0,
    )
