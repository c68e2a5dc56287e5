"""Simulate replicas of an engine under a workload, in virtual time.

The real scheduler, KV manager and message codec run. Requests have lengths and prefixes but no
text, and the executor has no model.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import field

import msgspec
import numpy as np

from quire.core.config import EngineConfig, StateConfig
from quire.core.cost import HardwareProfile
from quire.core.messages import AddRequest, CoreInput, CoreMessage, SchedulerStats, StepOutputs
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.memory import expected_plan
from quire.models.weights.shares import stage_config
from quire.routing.router import Router
from quire.simulate.clock import VirtualClock
from quire.simulate.dispatch import Dispatch, Make
from quire.simulate.histogram import Histogram
from quire.simulate.length_executor import LengthExecutor
from quire.simulate.stages import ModelledStage, modelled_stages
from quire.simulate.workload import Workload
from quire.system.records import dataclass

SERIES = 2_000
"""A replica's history is halved when it has more than twice as many points."""


class Outcome:
    """The latencies and tokens of a workload's requests.

    Attributes:
        sent, first, last: float64 [N], seconds: sent by the client, first and last token.
        tokens: int64 [N], generated tokens.
        gaps: times between two outputs of a request.
        cached: prompt tokens found in the prefix cache.
        failed: number of refused requests.
    """

    def __init__(self, workload: Workload) -> None:
        count = len(workload)
        self.workload = workload
        self.sent = np.full(count, np.nan)
        self.first = np.full(count, np.nan)
        self.last = np.full(count, np.nan)
        self.tokens = np.zeros(count, dtype=np.int64)
        self.gaps = Histogram()
        self.cached = 0
        self.failed = 0

    def note(self, step: StepOutputs) -> list[int]:
        """Record a step's tokens, and return the requests that ended in it."""
        now = step.timestamp
        if step.request_ids:
            indices = np.fromiter(map(int, step.request_ids), np.int64, len(step.request_ids))
            self.gaps.add(now - self.last[indices])
            self.last[indices] = now
            self.tokens[indices] += len(step.new_token_ids) // len(step.request_ids)
        ended = []
        for output in step.outputs:
            index = int(output.request_id)
            if output.new_token_ids:
                if math.isnan(self.first[index]):
                    self.first[index] = now
                    self.cached += output.num_cached_tokens
                else:
                    self.gaps.add(now - self.last[index : index + 1])
                self.last[index] = now
                self.tokens[index] += len(output.new_token_ids)
            if output.finish_reason is not None:
                ended.append(index)
                self.failed += output.finish_reason is FinishReason.ERROR
        return ended


@dataclass(slots=True)
class History:
    """A replica's load over time: (seconds, running, waiting, share of the KV cache)."""

    points: list[tuple[float, int, int, float]] = field(default_factory=list)
    kv_seconds: float = 0.0
    """Integral of the share of blocks in use, in seconds."""
    kv_peak: float = 0.0
    preemptions: int = 0
    steps: int = 0
    _every: int = 1

    def note(self, begin: float, now: float, waiting: int, stats: SchedulerStats) -> None:
        share = stats.kv_blocks_used / stats.kv_blocks_total
        self.kv_seconds += share * (now - begin)
        self.kv_peak = max(self.kv_peak, share)
        self.preemptions, self.steps = stats.num_preemptions, stats.num_steps
        if stats.num_steps % self._every == 0:
            self.points.append((now, stats.num_running, waiting + stats.num_waiting, share))
            if len(self.points) > 2 * SERIES:
                del self.points[::2]
                self._every *= 2


@dataclass(frozen=True, slots=True)
class Front:
    """The way of a request to the engine, and of its answer to the client.

    Attributes:
        request_seconds: the event loop's time per request. It handles one after the other, so
            requests that are sent together reach the engine one by one.
        tokenizers, tokenizer_seconds: processes before it, and a request's time in one of them.
        client_seconds: between the end of an answer and the client's next request.
    """

    request_seconds: float = 0.0
    tokenizers: int = 1
    tokenizer_seconds: float = 0.0
    client_seconds: float = 0.0


NO_FRONT = Front()


class Replica:
    """One engine core with its own clock."""

    def __init__(
        self,
        config: EngineConfig,
        num_blocks: int,
        stages: Sequence[ModelledStage],
        states: StateConfig | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.history = History()
        limits = config.scheduler
        self._executor = executor = LengthExecutor(
            num_blocks=num_blocks, max_num_seqs=limits.max_num_seqs, clock=self.clock,
            stages=stages, states=states,
        )  # fmt: skip
        self._core = EngineCore(config, executor, self.clock)
        self.config = config
        self._encoder = msgspec.msgpack.Encoder()
        self._requests = msgspec.msgpack.Decoder(CoreInput)
        self._answers = msgspec.msgpack.Decoder(CoreMessage)
        self._line: deque[int] = deque()
        # FCFS: requests far back in the queue need not be created yet.
        self._ahead = limits.max_num_seqs if limits.policy == "fcfs" else math.inf
        self.unfinished = 0

    @classmethod
    def on(cls, config: EngineConfig, hardware: HardwareProfile) -> Replica:
        """Return a replica on this hardware, with as many blocks as its memory holds."""
        plans = [
            expected_plan(part)
            for part in (stage_config(config, i) for i in range(config.pipeline_parallel_size))
        ]
        plan = min(plans, key=lambda plan: plan.num_blocks)
        return cls(config, plan.num_blocks, modelled_stages(config, hardware), plan.states)

    @property
    def num_blocks(self) -> int:
        return self._core.executor.num_blocks

    @property
    def idle_share(self) -> float:
        """Return the share of time that the stages did not compute, since the beginning."""
        busy, lived = self._executor.busy, self.clock()
        return 1.0 - sum(busy) / (len(busy) * lived) if lived else 0.0

    def send(self, message: CoreInput | int, now: float) -> None:
        """Take a message at `now`, or the index of a request, whose message is made when it is
        needed. `now` is no later than the next step."""
        if not self.unfinished:
            self.clock.advance(max(0.0, now - self.clock()))
        if isinstance(message, int):
            self.unfinished += 1
            self._line.append(message)
            return
        self.unfinished += isinstance(message, AddRequest)
        self._core.handle(self._requests.decode(self._encoder.encode(message)))

    def step(self, outcome: Outcome, make: Make) -> StepOutputs | None:
        """Compute one step; return its outputs, or None if the engine had no work."""
        stats = self._core.scheduler.stats()
        for _ in range(int(min(len(self._line), self._ahead - stats.num_waiting))):
            index = self._line.popleft()
            frame = self._encoder.encode(make(index, float(outcome.sent[index])))
            message = self._requests.decode(frame)
            assert isinstance(message, AddRequest)
            self._core.add(message)
        begin = self.clock()
        step = self._core.step()
        if step is None:
            return None
        told = self._answers.decode(self._encoder.encode(step))
        assert isinstance(told, StepOutputs)
        if told.stats is not None:
            self.history.note(begin, self.clock(), len(self._line), told.stats)
        return told

    def check_integrity(self) -> None:
        """Assert that the engine's bookkeeping is right between two steps."""
        self._core.scheduler.check_integrity()


def simulate(
    workload: Workload,
    replicas: list[Replica],
    router: Router | None = None,
    num_clients: int | None = None,
    front: Front = NO_FRONT,
    dispatch: Dispatch | None = None,
) -> Outcome:
    """Run all requests of `workload`.

    Args:
        router: chooses a replica for each request; needed if there are several.
        num_clients: most requests in flight. A request that arrives while all clients are busy is
            sent when the first is free. None means no limit.
        front: what a request passes before it reaches a replica.
        dispatch: sends the requests, in place of `router`.
    """
    outcome = Outcome(workload)
    arrivals = workload.arrivals.tolist()
    dispatch = dispatch or Dispatch(replicas, router, messages(workload))
    free = [0.0] * min(num_clients or 0, len(arrivals))
    following, front_free, tokenizers = 0, 0.0, [0.0] * front.tokenizers
    while True:
        busy = [replica for replica in replicas if replica.unfinished]
        slowest = min(busy, key=lambda replica: replica.clock()) if busy else None
        begins = slowest.clock() if slowest else math.inf
        reached = math.inf
        if following < len(arrivals) and (num_clients is None or free):
            when = arrivals[following] if num_clients is None else max(arrivals[following], free[0])
            tokenized = max(tokenizers[0], when) + front.tokenizer_seconds
            reached = max(front_free, tokenized) + front.request_seconds
        told = dispatch.next_report
        if told is not None and told <= min(reached, begins):
            dispatch.report()
        elif reached <= begins and reached < math.inf:
            if num_clients is not None:
                heapq.heappop(free)
            outcome.sent[following] = when
            dispatch.send(following, reached)
            front_free = reached
            heapq.heapreplace(tokenizers, tokenized)
            following += 1
        elif slowest is None:
            return outcome
        elif (step := slowest.step(outcome, dispatch.make)) is not None:
            now = slowest.clock()
            slowest.unfinished -= dispatch.stepped(now, replicas.index(slowest), step)
            ended = outcome.note(step)
            slowest.unfinished -= len(ended)
            if num_clients is not None:
                for _ in ended:
                    heapq.heappush(free, now + front.client_seconds)


def messages(workload: Workload) -> Make:
    """Return a function that makes the messages of a workload's requests."""
    params = _Params()

    def make(index: int, sent: float) -> AddRequest:
        prompt = pack_tokens(workload.prompt(index))
        wanted = params[int(workload.output_lens[index])]
        return AddRequest(str(index), prompt, wanted, arrival_time=sent)

    return make


class _Params(dict[int, SamplingParams]):
    """Return sampling parameters by the number of tokens to generate."""

    def __missing__(self, count: int) -> SamplingParams:
        params = self[count] = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        return params
