"""The inputs of one row with which the plans of a model are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, StateSlots

if TYPE_CHECKING:
    from quire.models.decoder import Decoder


def one_token(
    ops: Ops, block_size: int, *, states: bool = False, whole: bool = False
) -> tuple[Array, Array, AttentionMetadata]:
    """Return ids, positions and metadata of a sequence of one token, in block 0.

    With `states`, recurrent layers begin with zeros, and store their state in slot 0. With `whole`,
    the metadata say which sequences are seen whole.
    """
    ids, positions, slots = (ops.array(np.zeros(1, np.int64)) for _ in range(3))
    meta = AttentionMetadata(
        query_start_loc=np.array([0, 1], np.int32),
        seq_lens=np.ones(1, np.int32),
        block_tables=ops.array(np.zeros((1, 1), np.int32)),
        slot_mapping=slots,
        num_seqs=1,
        block_size=block_size,
        states=StateSlots(np.full(1, -1, np.int32), np.zeros(1, np.int64)) if states else None,
        whole=np.zeros(1, np.int32) if whole else None,
    )
    return ids, positions, meta


def one_stage_row(ops: Ops, decoder: Decoder) -> list[Array]:
    """Return a row of the stage before, and the embeddings that come with it, if layers have some
    of their own."""
    widths = decoder.config.hidden_size, decoder.config.own_columns
    return [ops.array(np.zeros((1, width), decoder.dtype)) for width in widths if width]


def one_given_row(ops: Ops, decoder: Decoder) -> list[Array]:
    """Return a token's embeddings, its rotations if images turn by three positions, and what is
    added behind the first layers."""
    vision = decoder.config.vision

    def row() -> Array:
        return ops.array(np.zeros((1, decoder.config.hidden_size), decoder.dtype))

    found = [row()]
    if vision is not None and vision.sections:
        assert decoder.rotations is not None, "the model has RoPE"
        found.append(ops.array(np.array(ops.numpy(decoder.rotations)[:1])))
        if decoder.config.in_first_stage:
            found += [row() for _ in vision.deep_layers]
    return found
