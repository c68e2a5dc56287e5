"""Plain data behind a verdict: from a running engine, an offline run or a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.messages import StageStats
from quire.core.op_profile import OpProfile
from quire.explain.host import HostUse
from quire.explain.limits import Limits
from quire.explain.surroundings import Surroundings
from quire.metrics.requests import RecordedRequest, RequestMix
from quire.metrics.times import CORE_PARTS
from quire.resolve.arguments import EngineArgs
from quire.system.stacks import Stacks

CORE = CORE_PARTS
"""Parts of the time that add up to the core's wall time."""
FRONT = ("http", "tokenize", "images", "detokenize", "send")
"""Parts of the front end: CPU seconds of other threads and processes."""
QUIET = 0.2
"""CPUs that other processes may use on a quiet machine."""
OFFLINE = (*CORE, "tokenize", "detokenize")
"""The same offline, where one thread does everything."""


class Window(msgspec.Struct, frozen=True):
    """An engine's activity during some seconds.

    Attributes:
        seconds: wall time.
        parts: seconds by the names of `metrics.times.PARTS`; the core's parts add up to `seconds`.
        step_sizes: steps by their tokens: (mean tokens, steps) per non-empty range of sizes.
        step_seconds: the model's seconds in the steps of each of these buckets; empty if unknown.
        step_rest: the core's other seconds with the steps of each; empty if unknown.
        computed_tokens: tokens of all steps, including those computed again after a preemption.
        requests: requests that got their first token.
        prompt_tokens, cached_tokens: of these requests; the latter from the prefix cache.
        repeated_tokens: of the prompt tokens, those that an earlier prompt began with, too.
        running, waiting, loading: sequences, mean over time; those that load KV blocks do not wait.
        demand: most sequences that ran and waited at a time.
        in_flight, most_in_flight: sequences between arrival and end, mean and maximum.
        kv_share, kv_peak: share of the KV blocks in use, mean and maximum.
        kv_held: largest share of the KV blocks that were in use or held a cached prefix.
        refused: requests answered with an error of the client, by its code; `rejected` of them
            because the queue was full.
        ended, aborted, cut: sequences that ended; those whose client left, and those that reached
            `max_tokens`.
        aborted_tokens: tokens computed for the aborted ones.
        slow_outputs: outputs that waited for a client to read.
        loop_lag_p99: seconds that the event loop was late; 0 if not sampled.
        itl_p50, itl_p99: seconds between tokens of a sequence; 0 without tokens.
        loaded_blocks, unsaved_blocks: KV blocks read from host memory or files, and those that
            could not be written to files.
        polls, scrape_seconds: GET requests by path, and the CPU seconds of those of /metrics.
        adapters: most adapters that running and waiting sequences wanted at a time.
        mix: requests in flight at any time of the window by what they ask for.
        drafted_passes: passes of a sequence with drafts, in speculative decoding.
        draft_tokens, accepted_tokens: drafts, and right ones.
        draft_seconds: time that drafting took, which is a part of `prepare`.
        arrivals: the latest requests, to replay them; some arrived before the window.
        stages: the pipeline's; empty for one stage.
    """

    seconds: float
    parts: dict[str, float]
    steps: int = 0
    step_sizes: list[tuple[float, int]] = []
    step_seconds: list[float] = []
    step_rest: list[float] = []
    computed_tokens: int = 0
    requests: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    repeated_tokens: int = 0
    preemptions: int = 0
    rejected: int = 0
    refused: dict[str, int] = {}
    ended: int = 0
    aborted: int = 0
    cut: int = 0
    aborted_tokens: int = 0
    slow_outputs: int = 0
    running: float = 0.0
    waiting: float = 0.0
    loading: float = 0.0
    demand: int = 0
    in_flight: float = 0.0
    most_in_flight: int = 0
    kv_share: float = 0.0
    kv_peak: float = 0.0
    kv_held: float = 0.0
    kv_blocks: int = 0
    loop_lag_p99: float = 0.0
    itl_p50: float = 0.0
    itl_p99: float = 0.0
    loaded_blocks: int = 0
    unsaved_blocks: int = 0
    polls: dict[str, int] = {}
    scrape_seconds: float = 0.0
    adapters: int = 0
    mix: RequestMix = msgspec.field(default_factory=RequestMix)
    drafted_passes: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_seconds: float = 0.0
    arrivals: list[RecordedRequest] = []
    stages: list[StageStats] = []

    def share(self, *names: str) -> float:
        """Return the share of the window that these parts took."""
        return sum(self.parts.get(name, 0.0) for name in names) / self.seconds

    @property
    def output_tok_s(self) -> float:
        return self.generation_tokens / self.seconds

    @property
    def recomputed_tokens(self) -> int:
        """Return the number of tokens that preempted requests computed again."""
        # A sequence's last token is sampled and never computed; its first comes with its prompt.
        first = self.prompt_tokens - self.cached_tokens + self.generation_tokens - self.requests
        first += self.draft_tokens - self.accepted_tokens
        return max(0, self.computed_tokens - first) if self.preemptions else 0


class Platform(msgspec.Struct, frozen=True):
    """The kernels of an engine.

    Attributes:
        isa: instruction set that they use; empty without native kernels.
        best_isa: the most capable one that this machine can run.
        tuned: shapes for which `quire tune kernels` found values.
        loading: seconds in which the start read and packed the weights.
        unkept: bytes of weights that the next start packs again; 0 if it does not.
    """

    isa: str = ""
    best_isa: str = ""
    tuned: int = 0
    loading: float = 0.0
    unkept: int = 0


class Evidence(msgspec.Struct, frozen=True):
    """The input of `explain`; None means unknown.

    Attributes:
        args: the user's arguments.
        config: the resolved configuration.
        cores: CPU cores that the engine may use.
        offline: one thread does everything, including tokenization; no HTTP.
        ops: profile of some of the window's steps, op by op.
        limits: the machine's measured limits.
        host: CPU use of the whole machine.
        surroundings: what the system gives the engine's processes.
        platform: the kernels that the engine uses.
        halves: the window's two halves, to see whether they agree; empty if it has no halves.
        tls: clients' connections are encrypted.
        stacks: where Python threads stood, of the API process first; empty offline.
    """

    window: Window
    args: EngineArgs
    config: EngineConfig
    cores: int
    offline: bool = False
    ops: OpProfile | None = None
    limits: Limits | None = None
    host: HostUse | None = None
    surroundings: Surroundings | None = None
    platform: Platform | None = None
    halves: list[Window] = []
    tls: bool = False
    stacks: list[Stacks] = []

    @property
    def on_device(self) -> bool:
        """Return whether a GPU computes the model, and one thread of the host submits its work."""
        return self.config.device != "cpu"

    @property
    def others(self) -> float:
        """Return the CPUs that other processes than clients use."""
        return 0.0 if self.host is None else self.host.others - self.host.clients

    @property
    def waited(self) -> float:
        """Return the share of the time that a thread of the engine waited for a core."""
        if self.host is None:
            return 0.0
        threads = 1 if self.on_device else self.config.num_threads
        return self.host.waited_share(threads, self.window.share("model"))

    def save(self, path: Path) -> None:
        """Write it as JSON, for `load` and `quire explain --profile`."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def load(path: Path) -> Evidence:
    """Return the evidence in a file.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
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
