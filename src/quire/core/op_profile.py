"""Times of the operations of some steps, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        expert_rows: of a mixture of experts, rows of each expert; else empty.
        experts_used: experts that had rows, summed over the calls.
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
    expert_rows: list[int] = []
    experts_used: int = 0


class ExpertBalance(msgspec.Struct, frozen=True):
    """How evenly a layer's router chose among its experts.

    Attributes:
        module: the layer's: "layers.3.mlp.experts".
        experts: their number.
        used: experts that had rows in a step, mean over the steps.
        peak: rows of the busiest expert, relative to the mean.
        busiest: its number.
    """

    module: str
    experts: int
    used: float
    peak: float
    busiest: int


def expert_balances(ops: Iterable[OpTime]) -> list[ExpertBalance]:
    """Return the balance of each layer that has experts and had rows."""
    found = []
    for op in ops:
        total = sum(op.expert_rows)
        if not total:
            continue
        most, count = max(op.expert_rows), len(op.expert_rows)
        busiest, module = op.expert_rows.index(most), op.module.rpartition(".")[0]
        used = op.experts_used / op.calls
        found.append(ExpertBalance(module, count, used, most * count / total, busiest))
    return found


class OpProfile(msgspec.Struct, frozen=True):
    """Operations of some steps. All numbers are totals over these steps, and over the stages of a
    pipeline.

    Attributes:
        steps: passes through the model.
        wall_seconds: time in the worker, from a step's inputs to its tokens; without scheduling,
            sending and waiting for requests between two steps.
        model_seconds: the part of it for the forward pass and the logits. The rest beyond `ops` is
            Python code between them.
        num_seqs: sequences in each step, summed over the steps.
        context_tokens: tokens that sequences attended to, summed over sequences and steps.
        ops: in the order in which the model runs them.
        prepare_seconds, sample_seconds: the rest of a step (see `CoreTimes`).
        rank_waits: the part of `model_seconds` in which each rank waited for others; empty without
            tensor parallelism.
        draft_seconds: time of drafting, a part of `wall_seconds` beside the others.
        draft_ops: operations of a draft model or head; `ops` are the target's, which verifies.
        num_draft_tokens, num_accepted_tokens: tokens that were drafted, and those that counted.
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
    draft_seconds: float = 0.0
    draft_ops: list[OpTime] = []
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @classmethod
    def of_stages(cls, profiles: Sequence[OpProfile]) -> OpProfile:
        """Return the profile of a pipeline from those of its stages, without waits for rows."""
        first, *others = profiles
        spent = [p.prepare_seconds + p.model_seconds + p.sample_seconds + p.draft_seconds
                 for p in others]  # fmt: skip
        return msgspec.structs.replace(
            first,
            wall_seconds=first.wall_seconds + sum(spent),
            model_seconds=sum(p.model_seconds for p in profiles),
            ops=[op for p in profiles for op in p.ops],
            prepare_seconds=sum(p.prepare_seconds for p in profiles),
            sample_seconds=sum(p.sample_seconds for p in profiles),
            rank_waits=[
                sum(waits) for waits in zip(*(p.rank_waits for p in profiles), strict=True)
            ],
            draft_seconds=sum(p.draft_seconds for p in profiles),
            num_draft_tokens=profiles[-1].num_draft_tokens,
            num_accepted_tokens=profiles[-1].num_accepted_tokens,
        )
