"""What attention and recurrent layers must know about a step's batch, and what they keep."""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Any, Generic, Literal, NamedTuple

import msgspec

from quire.core.dtypes import HostArray
from quire.ops.array import A
from quire.ops.device import CPU, Device


class Heads(NamedTuple, Generic[A]):
    """How the product for q, k and v is cut into heads, and what normalizes them.

    Attributes:
        q, kv: heads of queries; those of keys, and as many of values. Without any of these, only q
            is there.
        width: elements of a head.
        q_norm: weight of the RMS norm of each head of q [width], or of all [q · width]; None does
            not normalize.
        k_norm, v_norm: the same for k, and for each head of v.
        eps: of the norms.
    """

    q: int
    kv: int
    width: int
    q_norm: A | None = None
    k_norm: A | None = None
    v_norm: A | None = None
    eps: float = 0.0


class AttentionRules(NamedTuple, Generic[A]):
    """What a token attends to, and how scores become weights.

    Attributes:
        scale: multiplies q · k.
        window: attend to tokens less than `window` away only; None is all.
        softcap: scores s become softcap · tanh(s / softcap) (Gemma 2); None leaves them.
        causal: attend to no later token; else to later ones as to earlier ones, and all of the
            sequence is in the step.
        sinks: one more score per head, [num_heads], that has no value (gpt-oss).
        chunked: attend to tokens of the same chunk only; chunks have `window` tokens (Llama 4).
        whole: tokens of sequences that `AttentionMetadata.whole` names see later ones.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    sinks: A | None = None
    chunked: bool = False
    whole: bool = True


class Convolution(NamedTuple, Generic[A]):
    """A causal convolution of each channel.

    Attributes:
        weight: float32 [width, channels]; the last row is for the token itself.
        bias: float32 [channels].
        kind: what follows it: nothing, SiLU, or a product with a part of its input.
        first: column of the input at which the channels begin.
    """

    weight: A
    bias: A | None
    kind: Literal["none", "silu", "gated"]
    first: int = 0


class DeltaRules(NamedTuple, Generic[A]):
    """What the gated delta rule knows besides a step's rows.

    Attributes:
        rate: float32 [heads], positive.
        bias: of the decay, float32 [heads] or [heads · key_dim].
        key_heads: each serves neighbouring heads of values.
        decay, beta: columns at which these begin in their rows.
    """

    rate: A
    bias: A
    key_heads: int
    decay: int = 0
    beta: int = 0


class ScanRules(NamedTuple, Generic[A]):
    """What the state space of Mamba-2 knows besides a step's rows.

    Attributes:
        rate: float32 [heads], positive: exp(A_log).
        skip: float32 [heads]: D.
        bias: of dt, float32 [heads].
        groups: each has a B and a C for neighbouring heads.
        first: column at which dt begins in its rows.
        limits: of the time steps.
    """

    rate: A
    skip: A
    bias: A
    groups: int
    first: int = 0
    limits: tuple[float, float] = (0.0, inf)


class GatedNorm(NamedTuple, Generic[A]):
    """An RMS norm of groups, and a gate.

    Attributes:
        weight: float32 [columns]: one group; float32 [groups, columns / groups]; or
            [1, group size]: every group has the same weight. None does not normalize.
        kind: what multiplies: a function of the gate, or itself.
        first: column at which the gate begins in its rows.
        norm_first: the norm is of x, and not of the product.
        each: without a norm, so many neighbours share an element of the gate.
    """

    weight: A | None
    eps: float
    kind: Literal["silu", "sigmoid", "factor"]
    first: int = 0
    norm_first: bool = True
    each: int = 1


class KVCache(NamedTuple, Generic[A]):
    """One layer's paged cache: the provider's arrays
    [num_blocks, num_kv_heads, block_size, head_dim].

    ```
    k[block]  head 0  ┌ token 0 ─ head_dim values ┐      The tokens of one head lie together,
                      │ token 1                   │      so that attention reads a block as one
                      └ …  block_size tokens      ┘      contiguous run a head.
              head 1  …
    ```

    They are of the model's dtype, bfloat16, int8, int4 or 8-bit floats. In int8 an element is worth
    its product with the scale of its token and head, in two tensors bfloat16 [num_blocks,
    num_kv_heads, block_size]; 8-bit floats may have such scales, else an element is worth its
    product with `k_unit` or `v_unit`.

    An int4 cache (uint8) has head_dim / 2 bytes of codes per head, a scale of one byte, and of keys
    head_dim / 8 bytes of signs, contiguous. `ops/torch_ops/int4` says what they mean.

    A cache of latents has no v. Its k has one head of rows [rope | latent], and a token's value is
    its latent.
    """

    k: A
    v: A | None
    k_scale: A | None = None
    v_scale: A | None = None
    k_signs: A | None = None
    k_unit: float = 1.0
    v_unit: float = 1.0

    @property
    def packed(self) -> bool:
        """Return whether a byte has two elements."""
        k: Any = self.k
        return str(k.dtype) in ("uint8", "torch.uint8")

    @property
    def head_dim(self) -> int:
        """Return the elements of a head's key."""
        k: Any = self.k
        return int(k.shape[3]) << self.packed

    @property
    def tensors(self) -> list[A]:
        return [t for t in self[:5] if t is not None]


class LayerStates(NamedTuple, Generic[A]):
    """One recurrent layer's states of all slots.

    Attributes:
        conv: float32 [num_slots, *conv_state_shape].
        matrix: float32 [num_slots, *matrix_state_shape]; without one, `conv` stands here.
    """

    conv: A
    matrix: A

    @property
    def tensors(self) -> list[A]:
        return [self.conv] if self.matrix is self.conv else [self.conv, self.matrix]


class Span(NamedTuple):
    """One sequence's part of the step: rows [start, end), of which the last is token
    number `seq_len` of the sequence."""

    start: int
    end: int
    seq_len: int


class StateSlots(msgspec.Struct, frozen=True, eq=False):
    """Where a step's sequences find and leave the states of recurrent layers.

    A layer's states are one tensor, float32 [num_slots, *shape], with a shape of
    `conv_state_shape` or `matrix_state_shape`. A slot means the same in all layers. Both are host
    arrays.

    Attributes:
        state_from: int32 [num_seqs]; slot of the state before the sequence's first row, -1 for
            zeros. Several sequences may begin with one slot.
        state_to: int64 [num_tokens]; slot for the state after that row, -1 for none.
    """

    state_from: HostArray
    state_to: HostArray


def conv_state_shape(channels: int, width: int) -> tuple[int, int]:
    """Return the shape of a causal convolution's state: its last inputs, the oldest first."""
    return width - 1, channels


def matrix_state_shape(heads: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of the state of a delta rule or of Mamba-2: one matrix for each head.

    Args:
        rows: elements of a key, or of B and C.
        columns: elements of a value, or of a head of x.
    """
    return heads, rows, columns


class AttentionMetadata(msgspec.Struct, Generic[A], frozen=True, dict=True, eq=False):
    """One step's sequences, built by the runner and passed to every layer.

    Attributes:
        query_start_loc: int32 [num_seqs + 1], a host array; sequence i owns rows
            [loc[i], loc[i + 1]).
        seq_lens: int32 [num_seqs], a host array; tokens in the cache after this step.
        block_tables: int32 [num_seqs, max_blocks]; unused entries may hold anything.
        slot_mapping: int64 [num_tokens]; block * block_size + offset of each new token.
        states: what recurrent layers need besides; None for models without them.
        whole: int32 [num_seqs], a host array; 1 where a row of a causal model sees all tokens of
            its sequence behind it, too. None if no row does.
        device: sends what ops make of the host arrays.
    """

    query_start_loc: HostArray
    seq_lens: HostArray
    block_tables: A
    slot_mapping: A
    num_seqs: int
    block_size: int
    states: StateSlots | None = None
    whole: HostArray | None = None
    device: Device = CPU

    @cached_property
    def spans(self) -> list[Span]:
        """Return the sequences as Python integers; read once per step, not once per layer."""
        starts = self.query_start_loc.tolist()
        lens = self.seq_lens.tolist()
        return [Span(starts[i], starts[i + 1], lens[i]) for i in range(self.num_seqs)]
