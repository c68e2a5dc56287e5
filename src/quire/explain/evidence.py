"""What a verdict rests on: plain data, from a running engine, an offline run or a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.op_profile import OpProfile
from quire.explain.host import HostUse
from quire.explain.limits import Limits
from quire.resolve.arguments import EngineArgs

CORE = ("receive", "schedule", "prepare", "model", "sample", "update", "core_send", "idle")
"""Parts of `metrics.times.PARTS` that are the core's, and add up to its wall time."""
OFFLINE = (*CORE, "tokenize", "detokenize")
"""The same offline, where one thread does all."""


class Window(msgspec.Struct, frozen=True):
    """What an engine did in a stretch of time.

    Attributes:
        seconds: wall time.
        parts: of these, by the names of `metrics.times.PARTS`; the core's add up to all of it.
        step_sizes: steps by their tokens: (mean tokens, steps) of each bucket that was hit.
        computed_tokens: of all steps, tokens computed again after a preemption included.
        requests: that got their first token.
        prompt_tokens, cached_tokens: of these requests; the latter from the prefix cache.
        repeated_tokens: of prompts that arrived, those that an earlier one had begun with.
        running, waiting: sequences, mean over time.
        demand: most sequences that ran and waited at a time.
        kv_share, kv_peak: of the KV blocks in use, mean and most.
        kv_blocks: in all.
        slow_outputs: outputs that waited for a client to read.
        loop_lag_p99: seconds; the event loop's, 0 where it was not sampled.
    """

    seconds: float
    parts: dict[str, float]
    steps: int = 0
    step_sizes: list[tuple[float, int]] = []
    computed_tokens: int = 0
    requests: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    repeated_tokens: int = 0
    preemptions: int = 0
    rejected: int = 0
    slow_outputs: int = 0
    running: float = 0.0
    waiting: float = 0.0
    demand: int = 0
    kv_share: float = 0.0
    kv_peak: float = 0.0
    kv_blocks: int = 0
    loop_lag_p99: float = 0.0

    def share(self, *names: str) -> float:
        """The part of the window that went to these parts."""
        return sum(self.parts.get(name, 0.0) for name in names) / self.seconds

    @property
    def output_tok_s(self) -> float:
        return self.generation_tokens / self.seconds

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that preempted requests computed again."""
        # A sequence's last token is sampled and never computed; its first comes with its prompt.
        first = self.prompt_tokens - self.cached_tokens + self.generation_tokens - self.requests
        return max(0, self.computed_tokens - first) if self.preemptions else 0


class Evidence(msgspec.Struct, frozen=True):
    """All that `explain` looks at; what is None was not to be had.

    Attributes:
        args: what the user wrote.
        config: what the engine runs on.
        cores: that the engine might use.
        offline: one thread does all, tokenizing included; no HTTP.
        ops: some of the window's steps, operation by operation.
        limits: what the machine can do.
        host: what else ran on it.
        ranks: seconds that each step took each rank of a parallel engine, [steps][ranks], where
            they are known one by one; else `ops.rank_waits` tells of all steps together.
    """

    window: Window
    args: EngineArgs
    config: EngineConfig
    cores: int
    offline: bool = False
    ops: OpProfile | None = None
    limits: Limits | None = None
    host: HostUse | None = None
    ranks: list[list[float]] | None = None

    def save(self, path: Path) -> None:
        """Write it as JSON, for `load` and `quire explain --profile`."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def load(path: Path) -> Evidence:
    """Evidence that was saved.

    Raises:
        ConfigError: it cannot be read, or is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Evidence)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", param="--profile") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is no profile that quire explain can read: {error}.",
            fix="Write one with quire explain --save-profile FILE.",
            param="--profile",
        ) from None
