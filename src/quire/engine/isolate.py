"""Finds the requests that make a step fail: halves of it are computed, recursively."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
from msgspec.structs import replace

from quire.core.batch import ModelOutput, SchedulerOutput, total_tokens
from quire.executor.base import ForwardError, error_text


def compute_apart(
    compute: Callable[[SchedulerOutput], ModelOutput],
    step: SchedulerOutput,
    error: ForwardError,
    gone: Set[str] = frozenset(),
) -> tuple[ModelOutput, set[str]]:
    """Compute a step that raised `error` in parts, without what a step behind has removed (`gone`).

    A request that fails alone gets an entry in `errors`. One such request among n costs 2·log₂(n)
    further steps, n of them 2·n. The result's `times` are zero: the parts have other shapes. Loads
    from files go on while parts are computed.

    Returns:
        The result, and the requests that were left out. They began in this step with a shared
        prefix, which a request before them that failed, or is gone, may have had to write.

    Raises:
        Exception: another exception than `ForwardError` from `compute`.
    """
    output = ModelOutput(
        np.full((len(step.request_ids), step.width), -1, dtype=np.int64), **error.copied
    )
    sharing = _sharing(step)
    lost: set[str] = set()
    # Requests share blocks of those before them, so the first one is computed, or fails alone.
    first_failed = _first_of(gone, step)

    def run(entries: list[int]) -> None:
        late = sharing.intersection(range(first_failed + 1, len(step.request_ids)), entries)
        lost.update(step.request_ids[entry] for entry in late)
        if not (entries := [entry for entry in entries if entry not in late]):
            return
        try:
            result = compute(_part(step, entries))
        except ForwardError as failure:
            _add_loads(output, failure)
            halve(entries, failure)
            return
        _add_loads(output, result)
        tokens = result.sampled_token_ids
        output.sampled_token_ids[entries, : tokens.shape[1]] = tokens
        _add_entries(output, result)

    def halve(entries: list[int], error: ForwardError = error) -> None:
        nonlocal first_failed
        if len(entries) == 1:
            output.errors[step.request_ids[entries[0]]] = error_text(error)
            first_failed = min(first_failed, entries[0])
            return
        middle = len(entries) // 2
        run(entries[:middle])
        run(entries[middle:])

    # Sharing requests come last, in order of arrival: after those whose blocks they read.
    entries = [entry for entry, name in enumerate(step.request_ids) if name not in gone]
    entries.sort(key=lambda entry: entry in sharing)
    (halve if len(entries) == len(step.request_ids) else run)(entries)
    return output, lost


def _add_loads(output: ModelOutput, part: ModelOutput | ForwardError) -> None:
    output.failed_loads += part.failed_loads
    output.pending_loads = part.pending_loads


def _add_entries(output: ModelOutput, part: ModelOutput) -> None:
    output.logprobs |= part.logprobs
    output.prompt_logprobs |= part.prompt_logprobs
    output.pooled |= part.pooled
    output.errors |= part.errors


def _first_of(gone: Set[str], step: SchedulerOutput) -> int:
    """Return the first entry of these requests, or the number of entries."""
    found = (entry for entry, name in enumerate(step.request_ids) if name in gone)
    return min(found, default=len(step.request_ids))


def _sharing(step: SchedulerOutput) -> set[int]:
    """Return the entries with a prefix that another request in the step may write."""
    new = {new.request_id for new in step.new_sequences}
    computed = step.num_computed_tokens.tolist()
    return {i for i, name in enumerate(step.request_ids) if computed[i] and name in new}


def _part(step: SchedulerOutput, entries: list[int]) -> SchedulerOutput:
    """Return some entries of a step as a step; its copies and removals are done already."""
    names = [step.request_ids[entry] for entry in entries]
    place = np.full(len(step.request_ids), -1, dtype=np.int64)
    place[entries] = np.arange(len(entries))
    new_blocks = step.new_blocks[:, place[step.new_blocks[0]] >= 0]
    new_blocks[0] = place[new_blocks[0]]
    scheduled, most = step.num_scheduled_tokens[entries], step.max_new_tokens
    most = None if most is None else most[entries]
    return replace(
        step,
        request_ids=names,
        num_scheduled_tokens=scheduled,
        num_computed_tokens=step.num_computed_tokens[entries],
        new_blocks=new_blocks,
        new_sequences=[new for new in step.new_sequences if new.request_id in set(names)],
        removed=[],
        total_num_scheduled_tokens=total_tokens(scheduled, most),
        block_copies=None,
        max_new_tokens=most,
        batch_version=0,
    )
