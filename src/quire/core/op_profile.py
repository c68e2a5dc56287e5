"""Times of the operations of some steps, as plain data."""

from __future__ import annotations

import msgspec


class OpTime(msgspec.Struct, frozen=True):
    """One operation of one module, summed over all profiled steps.

    Attributes:
        name: a name of `ops.interface.OP_NAMES`: "linear", "paged_attention", "add_rms_norm" …
        module: where in the model: "layers.3.attn.qkv", "layers.3.mlp_norm", "embed", "lm_head".
        calls: how often it ran.
        seconds: wall time of all calls.
        nbytes: the least bytes that they had to move: weights, activations, keys and values.
        flops: a multiply-add counts as two.
        isa: "avx512_vnni" … for native kernels, else "torch".
        dtype: the type of its products: "float32", "bfloat16", "float16" or "int8".
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
    """Operations of some steps. All numbers are totals over these steps.

    Attributes:
        steps: passes through the model.
        wall_seconds: time in the worker, from a step's inputs to its tokens; without scheduling,
            sending and waiting for requests between two steps.
        model_seconds: the part of it for the forward pass and the logits. The rest beyond `ops` is
            Python code between them.
        tokens: computed tokens.
        num_seqs: sequences in each step, summed over the steps.
        context_tokens: tokens that sequences attended to, summed over sequences and steps.
        ops: in the order in which the model runs them.
        prepare_seconds, sample_seconds: the rest of a step (see `CoreTimes`).
        rank_waits: the part of `model_seconds` in which each rank waited for others; empty without
            tensor parallelism.
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
