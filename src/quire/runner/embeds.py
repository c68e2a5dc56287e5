"""Steps with some tokens given as embeddings. Plans do not support them, so ops run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, SchedulerOutput
from quire.core.dtypes import converted
from quire.layers.layer import Cache
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.runner.inputs import StepInputs
from quire.runner.model import Tap
from quire.runner.state import SequenceStates

if TYPE_CHECKING:
    from quire.models.decoder import Decoder

GivenRows = tuple[int, NDArray[np.float32]]
"""An index into the step's tokens, and the embeddings [n, hidden] from there on."""


def given_embeds(states: SequenceStates, step: SchedulerOutput, slots: Column) -> list[GivenRows]:
    """Return the embeddings among the step's tokens; its sequences are in `slots`."""
    given: list[GivenRows] = []
    row = 0
    for entry, slot in enumerate(slots.tolist()):
        count = int(step.num_scheduled_tokens[entry])
        start = int(step.num_computed_tokens[entry])
        embeds = states.prompt_embeds.get(slot)
        if embeds is not None and start < len(embeds):
            given.append((row, embeds[start : start + count]))
        row += count
    return given


def forward_embeds(
    decoder: Decoder,
    ops: Ops,
    caches: Sequence[Cache],
    inputs: StepInputs,
    rows: Array,
    given: Sequence[GivenRows],
    tap: Tap | None = None,
) -> Array:
    """Do the same as `Model.forward`; the bits are those of the tokens with these embeddings."""
    ids = ops.array(np.maximum(ops.numpy(inputs.input_ids), 0))
    embeds = ops.numpy(decoder.embed(ops, ids))
    for start, found in given:
        embeds[start : start + len(found)] = converted(found, embeds.dtype)
    adapter, row_adapter = inputs.adapters_of(rows) or (None, None)
    return decoder.forward(
        ops,
        ids,
        inputs.positions,
        caches,
        inputs.metadata,
        rows,
        adapter=adapter,
        row_adapter=row_adapter,
        embeds=ops.array(embeds),
        tap=tap,
    )
