"""Step inputs against the definition, token by token."""

from __future__ import annotations

import tracemalloc
from operator import is_

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from quire.core.batch import FirstState, NewSequence, SchedulerOutput, block_columns
from quire.core.sampling_params import SamplingParams
from quire.ops.array import address
from quire.runner.inputs import StepInputBuilder
from quire.runner.state import SequenceStates
from tests.examples import examples

LENGTH = 64


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, SchedulerOutput]:
    """Some new sequences, each asked for any run of its tokens."""
    block_size = draw(st.sampled_from([8, 16, 32]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    added, computed, scheduled, blocks = [], [], [], []
    for i in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, LENGTH))
        start = draw(st.integers(0, length - 1))
        count = draw(st.integers(1, length - start))
        tokens = rng.integers(0, 100, length).tolist()
        added.append(NewSequence(str(i), tokens, length, SamplingParams()))
        computed.append(start)
        scheduled.append(count)
        blocks.append(rng.integers(0, 500, -(-(start + count) // block_size)).tolist())
    names = [new.request_id for new in added]
    total = sum(scheduled)
    runs = [(i, 0, table) for i, table in enumerate(blocks)]
    return block_size, SchedulerOutput(
        1, names, np.array(scheduled), np.array(computed), block_columns(runs), added, [], total
    )


def tables(step: SchedulerOutput) -> list[list[int]]:
    """Each entry's block table; all sequences are new."""
    entries, _, blocks = step.new_blocks
    return [blocks[entries == i].tolist() for i in range(len(step.request_ids))]


@settings(max_examples=examples(100), deadline=None)
@given(steps())
def test_inputs_are_what_the_step_says(case: tuple[int, SchedulerOutput]) -> None:
    block_size, step = case
    states = SequenceStates(8, LENGTH, block_size)
    builder = StepInputBuilder(states, 8 * LENGTH, block_size)
    inputs = builder.build(step, states.begin(step))
    ids, positions, slots, starts, rows = [], [], [], [0], []
    for i, new in enumerate(step.new_sequences):
        start = int(step.num_computed_tokens[i])
        end = start + int(step.num_scheduled_tokens[i])
        for position in range(start, end):
            ids.append(new.token_ids[position])
            positions.append(position)
            block = tables(step)[i][position // block_size]
            slots.append(block * block_size + position % block_size)
        starts.append(len(ids))
        if end == len(new.token_ids):
            rows.append(len(ids) - 1)
    meta = inputs.metadata
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert meta.slot_mapping.tolist() == slots
    assert meta.query_start_loc.tolist() == starts
    assert inputs.sampling_rows.tolist() == rows
    lens = np.add(step.num_computed_tokens, step.num_scheduled_tokens).tolist()
    assert meta.seq_lens.tolist() == lens
    assert len(meta.block_tables) == len(lens)
    for i, blocks in enumerate(tables(step)):
        assert meta.block_tables[i, : len(blocks)].tolist() == blocks
    dtypes = [meta.query_start_loc.dtype, meta.seq_lens.dtype, meta.block_tables.dtype]
    assert dtypes == [np.int32] * 3
    assert inputs.input_ids.dtype == inputs.positions.dtype == np.int64
    assert meta.slot_mapping.dtype == inputs.sampling_rows.dtype == np.int64


def one_step(count: int) -> SchedulerOutput:
    new = NewSequence("a", list(range(count)), count, SamplingParams())
    blocks = block_columns([(0, 0, [1, 2, 3])])
    return SchedulerOutput(1, ["a"], np.array([count]), np.array([0]), blocks, [new], [], count)


def test_buffers_are_reused() -> None:
    states = SequenceStates(2, LENGTH, 8)
    builder = StepInputBuilder(states, 32, 8)
    slots = states.begin(one_step(20))
    addresses = set()
    for _ in range(3):
        inputs = builder.build(one_step(20), slots)
        addresses.add((address(inputs.input_ids), address(inputs.metadata.block_tables)))
    assert len(addresses) == 1


def test_a_plan_finds_the_arrays_of_the_last_step() -> None:
    """The same objects, until sizes or blocks change: to bind others takes 40 microseconds."""
    states = SequenceStates(2, LENGTH, 8, states_per_request=2, max_tokens=32)
    builder = StepInputBuilder(states, 32, 8)
    first = FirstState(-1, [0, 1])
    new = NewSequence("a", [1] * 20, 20, SamplingParams(), state=first)
    blocks = np.array([[0, 0, 0], [0, 1, 2], [5, 6, 7], [-1, -1, -1]])
    step = SchedulerOutput(
        1, ["a"], np.array([19]), np.array([0]), blocks, [new], [], 19, batch_version=1
    )
    slots = states.begin(step)
    builder.build(step, slots)
    decode = replace(step, num_scheduled_tokens=np.array([1]), new_blocks=block_columns([]))
    bound = []
    for position in (19, 20, 21):
        inputs = builder.build(replace(decode, num_computed_tokens=np.array([position])), slots)
        states.append(slots, np.array([3]))
        meta, states_of = inputs.metadata, inputs.metadata.states
        bound.append([
            inputs.input_ids, inputs.positions, inputs.sampling_rows, meta.query_start_loc,
            meta.seq_lens, meta.block_tables, meta.slot_mapping, states_of.state_from,
            states_of.state_to,
        ])  # fmt: skip
    assert all(map(is_, bound[0], bound[1]))
    assert all(map(is_, bound[1], bound[2]))


def test_memory_of_a_decode_step_does_not_grow_with_the_context() -> None:
    peaks = []
    for length in (16, 8000):
        states = SequenceStates(4, 8192, 8)
        blocks = list(range(length // 8))
        added = [NewSequence(str(i), [1] * length, length, SamplingParams()) for i in range(4)]
        names = [new.request_id for new in added]
        runs = block_columns([(i, 0, blocks) for i in range(4)])
        ones, last = np.full(4, 1), np.full(4, length - 1)
        step = SchedulerOutput(1, names, ones, last, runs, added, [], 4)
        builder = StepInputBuilder(states, 64, 8)
        slots = states.begin(step)
        builder.build(step, slots)
        step = replace(step, new_blocks=block_columns([]))
        tracemalloc.start()
        builder.build(step, slots)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] + 256  # Python's integers above 256 are objects


def test_a_step_past_the_limit_is_refused() -> None:
    states = SequenceStates(2, LENGTH, 8)
    step = one_step(20)
    with pytest.raises(ValueError, match="20 tokens; the limit is 16"):
        StepInputBuilder(states, 16, 8).build(step, states.begin(step))
