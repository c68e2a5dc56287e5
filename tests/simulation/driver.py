"""Drive an engine core through a list of arrivals and aborts, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quire.core.messages import AddRequest, CoreOutput, TokenLogprobs, unpack_logprobs
from quire.engine.core import EngineCore
from quire.simulate.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Event:
    """Something that reaches the core at `time`: a request, an abort of one, or, None, the wish
    to have its prefix cache emptied."""

    time: float
    message: AddRequest | str | None


MAX_EMPTY_STEPS = 100
"""Steps in a row that may compute nothing although somebody waits: blocks are loaded, and a load or
a step that fails is tried again."""


@dataclass(slots=True)
class Transcript:
    """All that one request was told."""

    token_ids: list[int] = field(default_factory=list)
    last: CoreOutput | None = None
    aborted: bool = False
    prompt_logprobs: list[TokenLogprobs] | None = None
    token_times: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.last is not None and self.last.finish_reason is not None


def drive(
    core: EngineCore,
    clock: VirtualClock,
    events: Iterable[Event],
    *,
    after_step: Callable[[], None] = lambda: None,
    max_steps: int = 1_000_000,
) -> dict[str, Transcript]:
    """Run until every event has happened and nobody is left to serve.

    Args:
        after_step: called when a step's outputs have been noted; checks go here.

    Raises:
        RuntimeError: nobody is served, or `max_steps` steps have passed.
    """
    line = sorted(events, key=lambda event: event.time)
    line.reverse()
    transcripts: dict[str, Transcript] = {}
    empty = 0
    for _ in range(max_steps):
        if line and not core.has_work():
            clock.advance(max(0.0, line[-1].time - clock()))
        while line and line[-1].time <= clock():
            _deliver(core, line.pop().message, transcripts)
        step = core.step()
        if step is None:
            if line:
                continue
            return transcripts
        for output in step.each():
            transcript = transcripts[output.request_id]
            assert not transcript.finished, f"{output.request_id} went on after its end"
            cut = transcript.aborted and output.new_token_ids
            assert not cut, f"{output.request_id} was aborted, and told more"
            transcript.token_ids += output.new_token_ids
            if output.prompt_logprobs is not None:
                assert transcript.prompt_logprobs is None, "a prompt was told of twice"
                transcript.prompt_logprobs = [*map(unpack_logprobs, output.prompt_logprobs)]
            transcript.token_times += [step.timestamp] * len(output.new_token_ids)
            transcript.last = output
        computed = step.stats is None or step.stats.step_tokens or step.outputs
        empty = 0 if computed else empty + 1
        if empty > MAX_EMPTY_STEPS:
            raise RuntimeError(f"nobody was served in {empty} steps")
        after_step()
    raise RuntimeError(f"not finished after {max_steps} steps")


def _deliver(
    core: EngineCore, message: AddRequest | str | None, transcripts: dict[str, Transcript]
) -> None:
    if message is None:
        core.call("reset_prefix_cache", [])
    elif isinstance(message, str):
        core.abort([message])
        if message in transcripts:
            transcripts[message].aborted = True
    else:
        transcripts[message.request_id] = Transcript()
        core.add(message)
