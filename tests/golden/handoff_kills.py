"""Kills the producer or the consumer of hand-offs at random moments, and counts wrong tokens.

`python -m tests.golden.handoff_kills MODEL FOLDER ROUNDS` prints the counts as JSON. Each round has
new prompts in the same folder. A consumer that is killed is started again. Children are forked, so
a round takes the time of loading a tiny model.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from quire.core.options import KVTransfer
from tests.golden.handoff import Side

PROMPTS, LENGTH, TOKENS = 3, 90, 6
SECONDS = 0.25
"""Longest time until a kill; a side takes about as long for all its prompts."""

Prompts = list[list[int]]
Write = Callable[[str], None]


def produce(model: Path, folder: Path, prompts: Prompts, write: Write) -> None:
    side = Side(model, folder, "kv_producer")
    for prompt in prompts:
        side.answer(prompt, 1, KVTransfer(hands_over=True))
    side.core.shutdown()


def consume(model: Path, folder: Path, prompts: Prompts, write: Write) -> None:
    side = Side(model, folder, "kv_consumer")
    for prompt in prompts:  # `answer` checks the integrity of the cache after each step
        write(json.dumps(side.answer(prompt, TOKENS, KVTransfer()).new_token_ids))
    tier = side.core.scheduler.stats().host_tier
    write(json.dumps([tier.loaded, tier.failed]))
    side.core.shutdown()


def in_child(
    work: Callable[[Path, Path, Prompts, Write], None],
    model: Path,
    folder: Path,
    prompts: Prompts,
    kill_after: float | None = None,
) -> list[str] | None:
    """Return the lines that `work` writes in a child; None if that was killed or failed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with os.fdopen(write, "w") as pipe:
                work(model, folder, prompts, lambda line: print(line, file=pipe, flush=True))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read) as pipe:
        lines = pipe.read().splitlines()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if kill_after is None and status:
        raise RuntimeError(f"{work.__name__} ended with status {status}")
    return None if status else lines


def run(model: Path, folder: Path, rounds: int) -> dict[str, int]:
    rng = Random(5)
    counts = dict.fromkeys(("rounds", "killed", "answers", "wrong", "loaded", "failed"), 0)
    counts["prompts"] = PROMPTS
    for _ in range(rounds):
        prompts = [[rng.randrange(3, 90) for _ in range(LENGTH)] for _ in range(PROMPTS)]
        expected = in_child(consume, model, folder / "none", prompts)
        after, victim = rng.uniform(0.0, SECONDS), rng.choice([produce, consume])
        in_child(produce, model, folder, prompts, after if victim is produce else None)
        if victim is consume:
            in_child(consume, model, folder, prompts, after)
        answers = in_child(consume, model, folder, prompts)
        counts["rounds"] += 1
        counts["killed"] += 1
        counts["answers"] += len(answers) - 1
        counts["wrong"] += sum(a != b for a, b in zip(answers, expected[:PROMPTS], strict=False))
        loaded, failed = json.loads(answers[-1])
        counts["loaded"] += loaded
        counts["failed"] += failed
    return counts


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
