"""The common part of all compared engines: a process that generates on request.

`quire bench compare` starts the module of an engine in that engine's environment, with `Options` as
JSON on its command line. It loads the model, makes one token, says so, and then answers each line
of standard input, a `Work`, with the moments of what it did. Whatever else is printed goes to
standard error.

Quire need not be installed there, but this file and what it imports must be found: nothing here
needs more than NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quire.bench.serving.workload import token_prompts
from quire.checkpoint.presets import preset_config
from quire.core.outputs import RequestMetrics


@dataclass(frozen=True, slots=True)
class Options:
    """The model that an engine loads, and its limits.

    Attributes:
        model: a preset of Quire, whose weights are then made up, or a folder or file.
        max_len: tokens of the longest sequence.
        max_seqs: sequences at once.
        files: a folder for files that are made once, such as a preset's as GGUF.
        own: Quire's own flags; others do not read them.
    """

    model: str
    dtype: str
    quantization: str | None
    num_threads: int
    seed: int
    max_len: int
    max_seqs: int
    files: str
    own: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """`count` prompts of `input_len` random tokens at once, `output_len` tokens for each."""

    count: int
    input_len: int
    output_len: int
    seed: list[int]


class Peer(Protocol):
    """An engine that has loaded its model.

    Attributes:
        name: the package that is installed, and its version.
    """

    name: str
    vocab_size: int

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        """Generate exactly `output_len` greedy tokens for each prompt of token ids.

        Returns:
            for each prompt its `arrival_time`, `first_token_time` and `last_token_time`.
        """


def main(
    open_peer: Callable[[Options], Peer], prepare: Callable[[Options], object] | None = None
) -> None:
    """Serve one engine, until standard input ends.

    Args:
        open_peer: loads the model.
        prepare: writes files once; its time is reported separately.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print to stdout
    options = Options(**json.loads(sys.argv[1]))
    begin = time.monotonic()
    if prepare is not None:
        prepare(options)
    prepared = time.monotonic() - begin
    peer = open_peer(options)
    length = min(16, options.max_len - 1)
    [first] = peer.generate([list(range(1, length + 1))], 1)
    ready = {"engine": peer.name, "first_token": first.first_token_time, "prepared": prepared}
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        print(json.dumps(_answer(peer, Work(**json.loads(line)))), file=answers)


def _answer(peer: Peer, work: Work) -> dict[str, Any]:
    prompts = token_prompts(work.count, work.input_len, peer.vocab_size, work.seed)
    start = time.monotonic()
    metrics = peer.generate(prompts, work.output_len)
    elapsed = time.monotonic() - start
    return {"elapsed": elapsed, "requests": [asdict(request) for request in metrics]}


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a preset or a folder."""
    found = preset_config(model)
    if found is None:
        found = json.loads((Path(model) / "config.json").read_text())
    return dict(found)
