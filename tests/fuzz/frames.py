"""Fuzzed frames on the core's line: `python -m tests.fuzz.frames --count 1000000`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from quire.core.messages import (
    BAD_FRAME,
    AbortRequests,
    AddRequest,
    Call,
    CoreInput,
    CoreMessage,
    Shutdown,
)
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import EMBEDDED, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.process import CoreServer
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.unit.engine.echo import load_echo
from tests.unit.engine.fakes import engine_config

GIVEN = RequestInputs(RequestOptions(2, "x"), (97,))
FRAMES = [
    AddRequest("r", pack_tokens([97, 98]), SamplingParams(max_tokens=3, temperature=0), 0.0),
    AddRequest("s", pack_tokens([97] * 40), SamplingParams(max_tokens=9, logprobs=2), 1.5, GIVEN),
    AddRequest(
        *("e", pack_tokens([EMBEDDED] * 2), SamplingParams(max_tokens=3), 0.0),
        RequestInputs(prompt_embeds=bytes(64)),
    ),
    AbortRequests(["r", "s"]),
    Call(1, "check_integrity"),
    Call(2, "reset_prefix_cache", [1]),
]


class Line:
    """Both ends of the core's socket: frames, then nothing while it has work, then its end."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._frames = frames
        self._quiet = False
        self._ended = False
        self.said: list[CoreMessage] = []

    def receive(self, *, wait: bool) -> list[bytes]:
        self._quiet = not self._quiet
        if not wait and (self._quiet or self._ended):  # it has work: let it, every other time
            return []
        found = next(self._frames, None)
        if found is None and not wait:
            self._ended = True
            return []
        return [found or msgspec.msgpack.encode(Shutdown())]


def _texts(value: Any) -> Any:
    """Return plain values with text in place of bytes."""
    if isinstance(value, list | tuple):
        return [_texts(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def frame(random: Random) -> bytes:
    """One that is mostly wrong; never a `Shutdown`."""
    message = random.choice(FRAMES)
    data = msgspec.msgpack.encode(message)
    match random.randrange(4):
        case 0:
            fields: Any = msgspec.to_builtins(message, builtin_types=(bytes,))
            data = msgspec.msgpack.encode(mutate_json(random, _texts(fields), ["n", "stop"]))
        case 1:
            data = random.choice([b"\x91", b"\x81\xa1a", b"\xdc\xff\xff", b"\xc6"]) * 1000 + data
        case _:
            data = mutate_bytes(random, data)
    try:
        stops = isinstance(msgspec.msgpack.decode(data, type=CoreInput), Shutdown)
    except BAD_FRAME:
        stops = False
    return b"" if stops else data


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """Send `count` frames to a core; how many it dropped, and how many answers it gave."""
    random = Random(seed)
    core, _ = load_echo(engine_config())
    line = Line(frame(random) or b"\xc1" for _ in range(count))
    server = CoreServer(core, line, line.said.append)  # type: ignore[arg-type]
    server.run()
    core.scheduler.check_integrity()
    assert core.scheduler.kv.pool.num_used == 0
    return server.frames.num_bad, len(line.said)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    begin = time.monotonic()
    logging.disable()  # of what is wrong with each
    dropped, answers = fuzz(args.count, args.seed)
    seconds = time.monotonic() - begin
    print(f"{args.count} frames in {seconds:.0f} s: {dropped} dropped, {answers} answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
