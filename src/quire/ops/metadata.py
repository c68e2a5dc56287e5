"""What attention must know about a step's batch, and the shape of its cache."""

from __future__ import annotations

from functools import cached_property
from typing import Generic, NamedTuple

import msgspec

from quire.core.dtypes import HostArray
from quire.ops.array import A


class KVCache(NamedTuple, Generic[A]):
    """One layer's paged cache: the provider's arrays
    [num_blocks, num_kv_heads, block_size, head_dim].

    ```
    k[block]  head 0  ┌ token 0 ─ head_dim values ┐      The tokens of one head lie together,
                      │ token 1                   │      so that attention reads a block as one
                      └ …  block_size tokens      ┘      contiguous run a head.
              head 1  …
    ```

    They are of the model's dtype, bfloat16, int8 or 8-bit floats. In int8 an element is worth its
    product with the scale of its token and head, in two tensors bfloat16 [num_blocks,
    num_kv_heads, block_size]; 8-bit floats may have such scales, else an element is worth its
    product with `k_unit` or `v_unit`.

    A cache of latents has no v. Its k has one head of rows [rope | latent], and a token's value is
    its latent.
    """

    k: A
    v: A | None
    k_scale: A | None = None
    v_scale: A | None = None
    k_unit: float = 1.0
    v_unit: float = 1.0

    @property
    def tensors(self) -> list[A]:
        """All that there are."""
        return [t for t in self[:4] if t is not None]


class Span(NamedTuple):
    """One sequence's part of the step: rows [start, end), of which the last is token
    number `seq_len` of the sequence."""

    start: int
    end: int
    seq_len: int


class AttentionMetadata(msgspec.Struct, Generic[A], frozen=True, dict=True, eq=False):
    """One step's sequences, built by the runner and passed to every layer.

    Attributes:
        query_start_loc: int32 [num_seqs + 1], a host array; sequence i owns rows
            [loc[i], loc[i + 1]).
        seq_lens: int32 [num_seqs], a host array; tokens in the cache after this step.
        block_tables: int32 [num_seqs, max_blocks]; unused entries may hold anything.
        slot_mapping: int64 [num_tokens]; block * block_size + offset of each new token.
        block_size: tokens in a block.
    """

    query_start_loc: HostArray
    seq_lens: HostArray
    block_tables: A
    slot_mapping: A
    num_seqs: int
    block_size: int

    @cached_property
    def spans(self) -> list[Span]:
        """The sequences as Python integers; read once a step, not once a layer."""
        starts = self.query_start_loc.tolist()
        lens = self.seq_lens.tolist()
        return [Span(starts[i], starts[i + 1], lens[i]) for i in range(self.num_seqs)]
