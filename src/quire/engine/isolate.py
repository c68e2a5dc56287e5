"""Who a step fails for: it is computed again in halves, and these, until one request is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.executor.base import ForwardError


def compute_apart(
    compute: Callable[[SchedulerOutput], ModelOutput],
    step: SchedulerOutput,
    error: ForwardError,
    reads: Mapping[int, set[int]],
) -> ModelOutput:
    """The result of a step that raised `error`: everyone's but theirs who cannot be computed.

    They have an entry in `errors`, and so have those that read what one of them should have
    written. One of them among n costs 2·log₂(n) further steps, n of them 2·n. The result's
    `times` are zero: they would say nothing about steps of this shape.

    Args:
        reads: entries, each with those of this step that write blocks it reads.

    Raises:
        Exception: what `compute` raised beside `ForwardError`.
    """
    output = ModelOutput(
        np.full((len(step.request_ids), step.num_steps), -1, dtype=np.int64),
        copy_seconds=error.copy_seconds,
        failed_loads=error.failed_loads,
    )
    failed: set[int] = set()

    def fail(entry: int, why: str) -> None:
        failed.add(entry)
        output.errors[step.request_ids[entry]] = why

    def run(entries: list[int]) -> None:
        for entry in entries:
            if not failed.isdisjoint(reads.get(entry, ())):
                fail(entry, "the request whose prefix it shares could not be computed")
        entries = [entry for entry in entries if entry not in failed]
        if not entries:
            return
        try:
            result = compute(_part(step, entries))
        except ForwardError as failure:
            halve(entries, failure)
            return
        tokens = result.sampled_token_ids
        output.sampled_token_ids[entries, : tokens.shape[1]] = tokens
        output.logprobs |= result.logprobs
        output.prompt_logprobs |= result.prompt_logprobs
        output.errors |= result.errors

    def halve(entries: list[int], error: ForwardError) -> None:
        if len(entries) == 1:
            fail(entries[0], reason(error))
            return
        middle = len(entries) // 2
        run(entries[:middle])
        run(entries[middle:])

    halve(_writers_first(range(len(step.request_ids)), reads), error)
    return output


def reason(error: BaseException) -> str:
    """What to tell of an exception that an executor raised."""
    cause = error.__cause__ if isinstance(error, ForwardError) and error.__cause__ else error
    return f"{type(cause).__name__}: {cause}"


def shared_blocks(
    step: SchedulerOutput, tables: Mapping[str, list[int]], block_size: int
) -> dict[int, set[int]]:
    """`reads` of a step, from the block tables of its requests: they share blocks that one of
    them computes in it."""
    starts = step.num_computed_tokens.tolist()
    ends = (step.num_computed_tokens + step.num_scheduled_tokens * step.num_steps).tolist()
    held = [tables.get(name, []) for name in step.request_ids]
    writer: dict[int, int] = {}
    for entry, table in enumerate(held):
        own = table[starts[entry] // block_size : -(-ends[entry] // block_size)]
        writer.update(dict.fromkeys(own, entry))
    return {
        entry: {writer[b] for b in table[: starts[entry] // block_size] if b in writer}
        for entry, table in enumerate(held)
    }


def _writers_first(entries: Iterable[int], reads: Mapping[int, set[int]]) -> list[int]:
    """Everyone after those whose blocks they read."""
    depths: dict[int, int] = {}

    def depth(entry: int) -> int:
        if entry not in depths:
            depths[entry] = 1 + max(map(depth, reads.get(entry, ())), default=0)
        return depths[entry]

    return sorted(entries, key=depth)


def _part(step: SchedulerOutput, entries: list[int]) -> SchedulerOutput:
    """Some entries of a step whose copies and removals have been done."""
    names = [step.request_ids[entry] for entry in entries]
    place = np.full(len(step.request_ids), -1, dtype=np.int64)
    place[entries] = np.arange(len(entries))
    new_blocks = step.new_blocks[:, place[step.new_blocks[0]] >= 0]
    new_blocks[0] = place[new_blocks[0]]
    scheduled = step.num_scheduled_tokens[entries]
    return replace(
        step,
        request_ids=names,
        num_scheduled_tokens=scheduled,
        num_computed_tokens=step.num_computed_tokens[entries],
        new_blocks=new_blocks,
        new_sequences=[new for new in step.new_sequences if new.request_id in set(names)],
        removed=[],
        total_num_scheduled_tokens=int(scheduled.sum()) * step.num_steps,
        block_copies=None,
    )
