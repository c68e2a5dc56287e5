"""One process, replicas, or replicas for prompts and for answers: what a machine gains from each.

The parts of a machine compute at the same time, so each has its share of the cores and of the
memory's bandwidth. Ranks share both as one process does; what they add is near memory where there
are several nodes.
"""

from __future__ import annotations

import msgspec

from quire.core.config import EngineConfig
from quire.core.cost import HardwareProfile
from quire.models.cost import roofline
from quire.models.weights.shares import worker_grid

ONE, REPLICAS, HALVES = (
    "", "--data-parallel-size 2", "--prefill-replicas 1 --decode-replicas 1",
)  # fmt: skip
SEQUENCES = 16
"""Answers at once, if the engine takes so many."""


class Layout(msgspec.Struct, frozen=True):
    """A way to use the machine, predicted for `sequences` answers at once.

    Attributes:
        flags: of `quire serve`; "" for one process.
        output_tok_s: of all answers together.
        itl_ms: between two tokens of an answer; `busy_itl_ms` while a prompt is computed.
        prompt_s: seconds until the first token after a prompt, while nothing else runs.
    """

    flags: str
    sequences: int
    output_tok_s: float
    itl_ms: float
    busy_itl_ms: float
    prompt_s: float


def layouts(config: EngineConfig, rates: HardwareProfile, length: int) -> list[Layout]:
    """Return what each layout gives; [] where the flags have chosen one, or one core has no parts.

    Args:
        rates: of the whole machine.
        length: tokens of a prompt, and of each answer's context.
    """
    chosen = worker_grid(config).size > 1 or config.transfer is not None
    if chosen or config.pooling or config.num_threads < 2:
        return []
    count = min(SEQUENCES, config.scheduler.max_num_seqs)
    length = min(length, config.scheduler.max_model_len - 1)
    half = rates.part(2)
    one = _layout(ONE, config, rates, (count, count), length)
    alike = _layout(REPLICAS, config, half, (count, -(-count // 2)), length)
    halves = _layout(HALVES, config, half, (count, count), length)
    return [one, alike, msgspec.structs.replace(halves, busy_itl_ms=halves.itl_ms)]


def _layout(
    flags: str, config: EngineConfig, rates: HardwareProfile, counts: tuple[int, int], length: int
) -> Layout:
    """Return what one engine gives; `counts`: of all answers, and of this engine's."""
    cost, scheduler = roofline(config, rates), config.scheduler
    whole, count = counts
    step = cost.seconds(count, count, count * length)
    chunk = min(length, scheduler.max_num_batched_tokens)
    busy = cost.seconds(count + chunk, count + 1, count * length + chunk)
    if scheduler.max_itl_stretch is not None:
        busy = max(step, min(busy, scheduler.max_itl_stretch * step))
    alone = cost.seconds(length, 1, length, length * (length + 1) // 2)
    return Layout(flags, whole, whole / step, 1e3 * step, 1e3 * busy, alone)


def advice(found: list[Layout], nodes: int) -> list[str]:
    """Return sentences about which layouts pay on a machine with so many memory nodes."""
    one, alike, halves = found
    less = 1.0 - alike.output_tok_s / one.output_tok_s
    first = (
        f"One memory node: two replicas read the weights twice as often, for {less:.0%} fewer "
        "tokens, and ranks wait for each other. One process pays."
    )
    if nodes > 1:
        first = (
            f"{nodes} memory nodes: --data-parallel-size {nodes} pays if the model fits each, "
            "because no core then reads another node's memory; else --tensor-parallel-size "
            f"{nodes}."
        )
    second = f"{HALVES} does not pay: one process keeps answers as fast beside a prompt."
    if halves.busy_itl_ms < one.busy_itl_ms:
        second = (
            f"{HALVES} pays if answers must not wait for prompts: {halves.busy_itl_ms:,.1f} ms per "
            f"token beside one, instead of {one.busy_itl_ms:,.1f}."
        )
    return [first, second]
