"""Before and behind the core: the line, the tokenizer, the clients."""

from __future__ import annotations

from quire.explain.causes.case import Case, Kind, Suspect, change, saving, suspect
from quire.explain.report import Change

FULL_BATCH = 0.95


def queueing(case: Case) -> Suspect | None:
    """The batch has no seat for who waits."""
    w, seats = case.window, case.evidence.config.scheduler.max_num_seqs
    if w.waiting < 1.0 or w.running < FULL_BATCH * seats:
        return None
    wanted = round(min(4.0 * seats, w.running + w.waiting))
    if w.kv_share > 0:
        wanted = min(wanted, int(w.running / w.kv_share))
    gain = case.estimate.batch_gain(wanted)
    fields: dict[str, bool | int | float | str | None] = {"max_num_seqs": wanted}
    why = f"reads the weights once for {wanted} sequences in place of {seats}"
    return suspect(
        "queueing",
        f"All {seats} seats of the batch are taken, and {w.waiting:.1f} requests wait for one.",
        saving(gain),
        [Change(f"--max-num-seqs {wanted}", why, "output tokens/s", gain, fields)],
        running=w.running,
        waiting=w.waiting,
        max_num_seqs=seats,
        rejected=w.rejected,
    )


def tokenization(case: Case) -> Suspect | None:
    """Texts become tokens more slowly than the core computes them."""
    e, w = case.evidence, case.window
    share = w.share("tokenize")
    if e.offline:
        why = "`quire serve` tokenizes in processes of its own; offline one thread does all"
        flag = f"--tokenizer-pool-size {max(1, e.args.tokenizer_pool_size)}"
        changes = [change(flag, why, share)]
        lost = share
        where = "in the thread that also runs the steps"
    else:
        lanes = max(1, e.args.tokenizer_pool_size)
        idle = w.share("idle")
        if share < 0.5 * lanes or idle < 0.1:
            return None
        more = lanes + 1
        busy = share + w.share("http", "detokenize", "send") + (1.0 - idle) * e.config.num_threads
        room = saving(max(0.0, e.cores / max(busy, 1e-9) - 1.0))
        lost = min(idle, room, min(1.0, share / lanes) * (1.0 - lanes / more))
        why = f"tokenizes in {more} processes at once"
        changes = [change(f"--tokenizer-pool-size {more}", why, lost, tokenizer_pool_size=more)]
        where = f"in {lanes} process{'es' if lanes > 1 else ''}, and the core waits {idle:.0%}"
    return suspect(
        "tokenization",
        f"Making tokens of texts takes {share:.0%} of the time, {where}.",
        lost,
        changes,
        tokenize_share=share,
        core_idle=w.share("idle"),
        tokenizer_pool_size=e.args.tokenizer_pool_size,
    )


def slow_client(case: Case) -> Suspect | None:
    """Clients read their streams more slowly than these are written."""
    w = case.window
    slow = w.slow_outputs / max(1, w.generation_tokens)
    return suspect(
        "slow_client",
        f"{slow:.0%} of the outputs waited for their client to read what it had been sent; the "
        "engine and the other streams lose nothing by it, and no flag of the server can help.",
        slow,
        [],
        Kind.ELSEWHERE,
        slow_outputs=w.slow_outputs,
    )
