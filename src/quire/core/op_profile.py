"""What the operations of some steps took: plain data, from the worker to whoever explains it."""

from __future__ import annotations

import msgspec


class OpTime(msgspec.Struct, frozen=True):
    """One operation of one module, over all profiled steps.

    Attributes:
        name: a name of `ops.interface.OP_NAMES`: "linear", "paged_attention", "add_rms_norm" …
        module: where in the model: "layers.3.attn.qkv", "layers.3.mlp_norm", "embed", "lm_head".
        calls: how often it ran.
        seconds: wall time in all calls.
        nbytes: the least that they had to move: weights, activations, keys and values.
        flops: two a multiply-add.
        isa: who computed it: "avx512_vnni" … for native kernels, else "torch".
        dtype: the type in which it multiplies: "float32", "bfloat16", "float16" or "int8".
        rows: in all calls.
    """

    name: str
    module: str
    calls: int
    seconds: float
    nbytes: int
    flops: int
    isa: str
    dtype: str
    rows: int


class OpProfile(msgspec.Struct, frozen=True):
    """Some steps, operation by operation. All numbers are totals over these steps.

    Attributes:
        steps: passes through the model.
        wall_seconds: of the steps in the worker, from their inputs to their tokens; what lies
            between two steps (scheduling, sending, waiting for requests) is not in it.
        model_seconds: of these, the forward pass and the logits. What it has beyond `ops` is Python
            between them.
        tokens: computed.
        num_seqs: sequences in each step, summed over the steps.
        context_tokens: tokens that sequences attended to, summed over sequences and steps.
        ops: in the order in which the model runs them.
        prepare_seconds, sample_seconds: the rest of a step (see `CoreTimes`).
        rank_waits: of `model_seconds`, those in which each rank waited for others; empty where one
            process computes the model.
    """

    steps: int
    wall_seconds: float
    model_seconds: float
    tokens: int
    num_seqs: int
    context_tokens: int
    ops: list[OpTime]
    prepare_seconds: float = 0.0
    sample_seconds: float = 0.0
    rank_waits: list[float] = []
