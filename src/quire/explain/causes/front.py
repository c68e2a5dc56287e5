"""Causes outside of steps: the queue, the tokenizer, images, connections."""

from __future__ import annotations

from quire.core.images import IMAGE_PROCESSES
from quire.explain.causes.cache import FULL_BATCH, blocks_are_full
from quire.explain.causes.case import (
    WORTH,
    Case,
    Kind,
    Suspect,
    advice,
    saving,
    setting,
    small_batch,
    suspect,
)
from quire.explain.evidence import QUIET
from quire.explain.report import Change

BUSY_LOOP = 0.8
"""Share of its time from which the event loop's thread delays the engine."""
LEAST_LANE = 0.15
"""Share of its time that a tokenizer's process must compute to delay the core."""
MANY_POLLS = 20.0
"""GET requests per second that no monitoring needs."""
LEAST_LEFT = 0.1
"""Share of the time that counts as left to a starved event loop."""
HALF = 0.5
"""Of the pixels: what an image of 0.7 times the side takes."""
LEAST_PROCESS = 0.5
"""Share of its time that an image process must compute to delay the core."""
WRITES = 0.25
"""Share of detokenizing and sending in a busy event loop's time if it writes rather than reads."""
LEAST_LOOP = 0.3
"""Share of the engine's CPU time that the event loop must take to delay the core."""


def queueing(case: Case) -> Suspect | None:
    """Requests wait for a seat in the batch, even if a larger batch is not faster."""
    w, seats = case.window, case.seats
    # The gauges are sampled, so `running` misses the moments between two requests.
    mean = w.running + w.waiting
    if w.waiting <= 0.0 or (demand := max(w.demand, mean)) <= seats:
        return None
    if w.running <= min(FULL_BATCH * seats, seats - 1.0):  # a seat is free
        if blocks_are_full(w):
            return None  # see `kv_cache_too_small`
        if len(case.args.replicas) > 1 and w.waiting >= 0.5:
            return _waits_for_one_replica(case)
    wanted = round(min(4.0 * seats, demand))
    if w.kv_share > 0:
        wanted = min(wanted, int(w.running / w.kv_share))
    wanted = max(wanted, seats + 1)
    # With fewer requests than seats on average, they queue in bursts.
    usual = min(wanted, round(mean))
    gain = max(0.0, case.estimate.batch_gain(usual)) if usual > seats else 0.0
    why = f"reads the weights once for {wanted} sequences in place of {seats}"
    taken = f"All {seats} seats" if seats > 1 else "The one seat"
    floor = small_batch(w)
    return suspect(
        f"{taken} of the batch {'are' if seats > 1 else 'is'} taken, and {w.waiting:.1f} requests "
        "wait on average.",
        saving(gain),
        setting(why, saving(gain), **case.seating(wanted)),
        kind=Kind.PROVEN if max(floor, saving(gain)) >= WORTH else Kind.ELSEWHERE,
        floor=floor,
    )


def _waits_for_one_replica(case: Case) -> Suspect | None:
    """Return that requests wait in one replica although another one has seats and blocks."""
    w, seats = case.window, case.seats
    return suspect(
        f"On average {w.running:.1f} of {seats} seats of a replica are taken and {w.waiting:.1f} "
        "requests wait: one replica has a queue while another has free seats.",
        WORTH,
        advice("no X-data-parallel-rank in requests", "spreads them over all replicas"),
        floor=WORTH,
    )


def tokenization(case: Case) -> Suspect | None:
    """Tokenization is slower than the core."""
    e, w = case.evidence, case.window
    share = busy_lanes = w.share("tokenize")
    if e.offline:
        why = "`quire serve` tokenizes in separate processes; offline one thread does everything"
        flag = f"--tokenizer-pool-size {max(1, e.args.tokenizer_pool_size)}"
        best = advice(flag, why, share)
        lost, floor = share, 0.0
        where = "in the thread that also runs the steps"
    else:
        lanes = max(1, e.args.tokenizer_pool_size)
        idle = w.share("idle")
        # Beside other programs a busy lane waits for a core for a part of its time. Counts prove
        # then that requests are before the core.
        waited = max(case.waited, _loop_waited(case))
        most = share > w.share("http", "detokenize", "send", "images") and e.others > QUIET
        before = w.in_flight - w.running - w.waiting - w.loading
        floor = WORTH if most and before >= max(0.5, w.in_flight / 2) else 0.0
        if (
            (share < LEAST_LANE * lanes and not floor)
            or share + waited * lanes < 0.5 * lanes
            or idle < 0.1
        ):
            return None
        more = lanes + 1
        busy_lanes = share / lanes
        busy = share + w.share("http", "detokenize", "send") + (1.0 - idle) * e.config.num_threads
        alone = saving(max(0.0, e.cores / max(busy, 1e-9) - 1.0))
        lost = min(idle, alone, busy_lanes * (1.0 - lanes / more))
        floor = max(floor, lost)
        why = f"tokenizes in {more} processes at once"
        best = setting(why, case.if_quiet(lost), tokenizer_pool_size=more)
        where = f"in {lanes} process{'es' if lanes > 1 else ''}, and the core waits {idle:.0%}"
    return suspect(
        f"Tokenization takes {busy_lanes:.0%} of the time, {where}.",
        lost,
        best,
        floor=floor,
        kind=Kind.WASTE,
    )


def detokenization(case: Case) -> Suspect | None:
    """Turning tokens into text keeps one thread busy."""
    w, e = case.window, case.evidence
    if e.offline:
        lost = w.share("detokenize")
        flag, why = "detokenize=False", "returns tokens only; the caller decodes them"
    else:
        lost = min(w.share("idle"), w.share("detokenize") - 0.5)
        flag, why = "stream=false in requests", "turns an answer into text once, not per token"
    return suspect(
        f"Turning tokens into text takes {w.share('detokenize'):.0%} of one core's time.",
        lost,
        advice(flag, why, lost),
        kind=Kind.WASTE,
    )


def http_overload(case: Case) -> Suspect | None:
    """The thread that serves HTTP is busy all the time."""
    w, e = case.window, case.evidence
    busy = w.share("http", "detokenize", "send")
    if e.offline or e.tls or not _fills_loop(case, busy) or w.share("detokenize") > busy / 2:
        return None
    # Beside other programs a busy loop proves nothing, unless the core waits for it.
    lost = max(min(w.share("idle"), _loop_time(case, busy)), 0.5 * (busy - BUSY_LOOP))
    what, why = "smaller or fewer requests, or several servers", "reads less per process"
    if w.share("detokenize", "send") >= WRITES * busy:
        what, why = "stream=false, or several servers", "writes fewer events per process"
    return suspect(
        f"The API process's thread is {min(1.0, busy):.0%} busy with connections, requests and "
        f"events, and the core waits {w.share('idle'):.0%} of the time.",
        lost,
        advice(what, why, lost),
        kind=Kind.WASTE,
    )


def _fills_loop(case: Case, busy: float, most: float = BUSY_LOOP) -> bool:
    """Return whether the event loop hardly rests, and takes much of the engine's CPU time."""
    host = case.host
    own = 1.0 if host is None or not host.own else min(1.0, host.own / host.seconds)
    return _loop_time(case, busy) >= most and busy >= LEAST_LOOP * own


def _loop_time(case: Case, busy: float) -> float:
    """Return the share of the window in which the event loop's thread ran or waited for a core."""
    if waited := _loop_waited(case):
        return min(1.0, busy + waited)
    return min(1.0, busy / (1.0 - case.waited))


def _loop_waited(case: Case) -> float:
    """Return the share of the window in which the event loop's thread waited for a core."""
    host = case.host
    return 0.0 if host is None else host.loop_waited / host.seconds


def tls(case: Case) -> Suspect | None:
    """Encryption keeps the thread that serves HTTP busy."""
    w, e = case.window, case.evidence
    if not e.tls or not _fills_loop(case, w.share("http", "send"), BUSY_LOOP / 2):
        return None
    busy = min(1.0, w.share("http", "send"))
    lost = 0.5 * busy
    return suspect(
        f"The API process's thread spends {busy:.0%} of the time on encrypted connections.",
        lost,
        advice("a proxy that ends TLS (nginx, envoy)", "encrypts in other processes", lost),
        kind=Kind.WASTE,
    )


def scrapes(case: Case) -> Suspect | None:
    """Metrics, health or models are asked so often that it takes time."""
    w = case.window
    asked = sum(w.polls.values())
    lost = w.scrape_seconds / w.seconds
    if asked >= MANY_POLLS * w.seconds:  # each takes about as long as the rest of a request
        requests = asked + w.mix.requests + sum(w.refused.values())
        lost = max(lost, w.share("http") * asked / requests)
    left = max(LEAST_LEFT, 1.0 - _loop_waited(case))  # by other programs
    path = max(w.polls, key=w.polls.__getitem__, default="/metrics")
    path = path if path.startswith("/") else "/…"
    return suspect(
        f"GET {path} and others were answered {asked / w.seconds:.0f} times per second, which "
        f"took {lost:.0%} of the API process's thread.",
        lost,
        advice("scrape_interval: 15s in Prometheus, fewer polls", "asks less often", lost),
        floor=WORTH if lost >= WORTH * left else 0.0,
    )


def encoder(case: Case) -> Suspect | None:
    """The tower reads images while text waits."""
    share = case.window.share("encode")
    return suspect(
        f"The tower reading images takes {share:.0%} of the core's time.",
        HALF * share,
        _smaller(share),
        kind=Kind.CLIENTS,
    )


def image_preparation(case: Case) -> Suspect | None:
    """The core waits for images that are decoded and resized."""
    w, e = case.window, case.evidence
    busy, idle = w.share("images"), w.share("idle")
    lanes = min(IMAGE_PROCESSES, max(1, e.cores))
    if busy < LEAST_PROCESS * min(lanes, 2):
        return None
    return suspect(
        f"Decoding and resizing images takes {busy:.1f} cores, in up to {IMAGE_PROCESSES} "
        f"processes, and the core waits {idle:.0%}.",
        min(idle, busy / lanes),
        _smaller(min(idle, busy / lanes)),
        kind=Kind.CLIENTS,
    )


def _smaller(share: float) -> Change:
    return advice("smaller images", "half of the pixels take half of the time", HALF * share)
