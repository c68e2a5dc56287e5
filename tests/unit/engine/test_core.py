"""The engine core over a modelled executor: what it does when things go wrong."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig, SchedulerConfig
from quire.core.errors import NOT_FOLLOWED, InvalidRequestError
from quire.core.messages import AddRequest, CoreOutput
from quire.core.model_config import ModelConfig
from quire.core.options import KVTransfer, RequestInputs
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.engine.core import EngineCore
from quire.engine.kv_events import KVEventPublisher
from quire.executor.base import Prepare
from quire.simulate.clock import VirtualClock
from tests.simulation.executor import ModelledExecutor, modelled_tokens

VOCAB = 50


class Steps:
    """Counts steps, and fails those it is told to."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.count = 0

    def __call__(self, batch: SchedulerOutput) -> bool:
        self.count += 1
        return self.count in self.failing


def make(
    num_blocks: int = 8,
    steps: Callable[[SchedulerOutput], bool] | None = None,
    *,
    async_scheduling: bool = False,
    events: KVEventPublisher | None = None,
) -> EngineCore:
    config = EngineConfig(
        model_path="modelled",
        model=ModelConfig("llama", VOCAB, 1, 1, 1, 1, 1, 1, 1000),
        load_format="dummy",
        dtype="float32",
        quantization=None,
        kv_cache_dtype="float32",
        seed=0,
        block_size=16,
        num_blocks=num_blocks,
        kv_cache_memory_bytes=None,
        memory_budget_bytes=0,
        enable_prefix_caching=True,
        scheduler=SchedulerConfig(1000, 4, 64),
        ops="reference",
        num_threads=1,
        async_scheduling=async_scheduling,
    )
    clock = VirtualClock()
    executor = ModelledExecutor(
        num_blocks=num_blocks,
        block_size=16,
        vocab_size=VOCAB,
        clock=clock,
        fails=steps or Steps(),
    )
    return EngineCore(config, executor, clock, events)


def ask(name: str, length: int = 10, max_tokens: int = 3) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return AddRequest(name, pack_tokens([1] * length), params, arrival_time=0.0)


def finish(core: EngineCore) -> dict[str, list[CoreOutput]]:
    told: dict[str, list[CoreOutput]] = {}
    while step := core.step():
        core.scheduler.check_integrity()
        for output in step.each():
            told.setdefault(output.request_id, []).append(output)
    return told


def tokens(outputs: list[CoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def test_a_request_is_answered_and_leaves_nothing_behind() -> None:
    core = make()
    core.add(ask("a"))
    assert tokens(finish(core)["a"]) == modelled_tokens([1] * 10, 3, VOCAB)
    assert core.step() is None
    assert core.scheduler.kv.pool.num_used == 0


def test_a_request_that_can_never_run_is_answered_with_the_reason() -> None:
    core = make(num_blocks=2)
    core.add(ask("big", length=100))
    core.add(ask("small"))
    told = finish(core)
    assert told["big"][0].finish_reason is FinishReason.ERROR
    assert "whole KV cache holds 32" in str(told["big"][0].stop_reason)
    assert len(tokens(told["small"])) == 3


def test_the_executor_hears_of_finished_requests_even_when_nothing_runs() -> None:
    """Found by review: a refused request made a step without work, and `removed` was lost."""
    core = make(num_blocks=2)
    for i in range(10):
        core.add(ask(f"r{i}"))
        finish(core)
        core.add(ask(f"big{i}", length=100))
        finish(core)
    core.add(ask("last"))
    core.step()
    assert isinstance(core.executor, ModelledExecutor)
    assert list(core.executor._sequences) == ["last"]


def test_a_failed_step_ends_its_requests_and_the_next_ones_are_right() -> None:
    core = make(steps=Steps(2))
    core.add(ask("a"))
    (output,) = [o for o in finish(core)["a"] if o.finish_reason]
    assert output.finish_reason is FinishReason.ERROR
    assert "the modelled step failed" in str(output.stop_reason)
    core.add(ask("b"))
    assert tokens(finish(core)["b"]) == modelled_tokens([1] * 10, 3, VOCAB)


class Poison:
    """Fails every step with one of these requests, and notes whom the steps were for."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.batches: list[list[str]] = []

    def __call__(self, batch: SchedulerOutput) -> bool:
        self.batches.append(batch.request_ids)
        return not set(self.names).isdisjoint(batch.request_ids)


@pytest.mark.parametrize("names", [["c"], ["a", "d"], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("ahead", [False, True])
def test_only_those_fail_with_whom_a_step_cannot_be_computed(names: list[str], ahead: bool) -> None:
    poison = Poison(*names)
    core = make(steps=poison, async_scheduling=ahead)
    for name in "abcd":
        core.add(ask(name))
    told = finish(core)
    for name in "abcd":
        if name in names:
            [output] = told[name]
            assert output.finish_reason is FinishReason.ERROR
            assert "RuntimeError: the modelled step failed" in str(output.stop_reason)
        else:
            assert tokens(told[name]) == modelled_tokens([1] * 10, 3, VOCAB)
    assert poison.batches[:2] == [["a", "b", "c", "d"], ["a", "b"]]
    assert core.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("names", ["b", "c", "bc"])
@pytest.mark.parametrize("ahead", [False, True])
def test_who_shares_what_was_not_computed_computes_it(names: str, ahead: bool) -> None:
    """The first of a prompt's requests writes its blocks for the others, in the same step."""
    core = make(num_blocks=16, steps=Poison(*names), async_scheduling=ahead)
    prompts = {"a": [1] * 20, "b": [2] * 20, "c": [2] * 20, "d": [3] * 20}
    for name, prompt in prompts.items():
        message = ask(name)
        message.prompt_token_ids = pack_tokens(prompt)
        core.add(message)
    told = finish(core)
    for name, prompt in prompts.items():
        if name in names:
            assert told[name][-1].finish_reason is FinishReason.ERROR
        else:
            assert tokens(told[name]) == modelled_tokens(prompt, 3, VOCAB)
    assert core.scheduler.kv.pool.num_used == 0


def test_a_step_that_fails_once_fails_nobody() -> None:
    core = make(steps=Steps(2))
    for name in "abcd":
        core.add(ask(name))
    for outputs in finish(core).values():
        assert tokens(outputs) == modelled_tokens([1] * 10, 3, VOCAB)


def test_an_executor_that_breaks_ends_the_step_s_requests() -> None:
    core = make(steps=Poison("b"))
    for name in "abcd":
        core.add(ask(name))

    def broken(batch: SchedulerOutput) -> ModelOutput:
        raise OSError("the worker is gone")

    core.executor.execute = broken  # type: ignore[method-assign]
    for [output] in finish(core).values():
        assert output.stop_reason == "OSError: the worker is gone"


def test_an_abort_frees_the_blocks_before_the_next_step() -> None:
    core = make()
    core.add(ask("a", length=40, max_tokens=50))
    core.add(ask("b", length=40, max_tokens=50))
    core.step()
    used = core.scheduler.kv.pool.num_used
    core.abort(["a"])
    assert 0 < core.scheduler.kv.pool.num_used < used
    step = core.step()
    assert [output.request_id for output in step.each()] == ["b"]
    core.abort(["b"])
    assert core.scheduler.kv.pool.num_used == 0
    assert core.step() is None


def test_utility_calls() -> None:
    core = make()
    core.add(ask("a", length=40))
    finish(core)
    assert core.call("check_integrity", []) is None
    core.call("reset_prefix_cache", [])
    core.add(ask("b", length=40))
    assert finish(core)["b"][0].num_cached_tokens == 0
    with pytest.raises(InvalidRequestError, match="no method 'reboot'"):
        core.call("reboot", [])


def test_a_batch_has_a_version_until_somebody_comes_or_goes() -> None:
    batches: list[tuple[int, list[str]]] = []

    def note(batch: SchedulerOutput) -> bool:
        batches.append((batch.batch_version, batch.request_ids))
        return False

    core = make(steps=note)
    core.add(ask("a", max_tokens=8))
    core.add(ask("b", max_tokens=4))
    finish(core)
    names = dict(batches)
    assert 0 not in names
    assert [*names.values()] == [["a", "b"], ["a"]]
    assert all(ids == names[version] for version, ids in batches)
    assert len(batches) == 8


def test_times_cover_the_cores_clock() -> None:
    core = make()
    core.add(ask("a", max_tokens=5))
    while step := core.step():
        assert step.times is not None
        assert sum(msgspec.structs.astuple(step.times)) == pytest.approx(step.timestamp)
    assert core.watch.seconds["model"] == pytest.approx(sum(core.watch.seconds.values()))


def test_the_time_of_a_failed_step_is_the_models() -> None:
    core = make(steps=Steps(1))
    core.add(ask("a"))
    finish(core)
    assert core.watch.seconds["model"] > 0.0


class CompilingExecutor(ModelledExecutor):
    """Every request of it that has a structure waits until the test lets it go."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(
            num_blocks=8, block_size=16, vocab_size=VOCAB, clock=clock, fails=lambda batch: False
        )
        self.ready: list[Future[None]] = []

    def prepare(self, wanted: Prepare) -> Future[None] | None:
        if wanted.params.structured_outputs is None:
            return None
        self.ready.append(Future())
        return self.ready[-1]


def structured(name: str, max_tokens: int = 3) -> AddRequest:
    message = ask(name, max_tokens=max_tokens)
    wanted = StructuredOutputsParams(regex="a")
    message.sampling_params = message.sampling_params.replace(structured_outputs=wanted)
    return message


def test_a_request_that_compiles_holds_up_nobody() -> None:
    core = make()
    executor = core.executor = CompilingExecutor(VirtualClock())
    core.add(structured("slow"))
    core.add(ask("quick"))
    told: dict[str, list[CoreOutput]] = {}
    while core.scheduler.has_unfinished():
        step = core.step()
        assert step.stats.num_waiting == 1
        for output in step.each():
            told.setdefault(output.request_id, []).append(output)
    assert len(tokens(told["quick"])) == 3
    assert "slow" not in told
    step = core.step()  # nobody else is here: it waits a little, and says so
    assert step is not None
    assert core.has_work()
    executor.ready[0].set_result(None)
    assert len(tokens(finish(core)["slow"])) == 3
    assert not core.has_work()


@pytest.mark.parametrize("again", [ask, structured])
@pytest.mark.parametrize("waits", [ask, structured])
def test_an_id_that_is_in_use_is_not_taken_twice(
    waits: Callable[..., AddRequest], again: Callable[..., AddRequest]
) -> None:
    """The first of the two is answered, as if the second had not come."""
    core = make()
    executor = core.executor = CompilingExecutor(VirtualClock())
    core.add(waits("a", max_tokens=3))
    core.add(again("a", max_tokens=5))
    for ready in executor.ready:
        ready.set_result(None)
    core.step()
    core.add(again("a", max_tokens=5))
    outputs = finish(core)["a"]
    assert [o.finish_reason for o in outputs if o.finish_reason] == [FinishReason.LENGTH]
    assert core.scheduler.kv.pool.num_used == 0


def test_a_grammar_that_fails_is_its_requests_end() -> None:
    core = make()
    executor = core.executor = CompilingExecutor(VirtualClock())
    core.add(structured("bad"))
    core.add(structured("gone"))
    executor.ready[0].set_exception(InvalidRequestError("no such keyword"))
    core.abort(["gone"])
    [output] = finish(core)["bad"]
    assert output.finish_reason is FinishReason.ERROR
    assert output.stop_reason == f"{NOT_FOLLOWED}no such keyword"
    assert not core.has_work()


def test_completions_of_a_request_share_its_embeddings() -> None:
    core = make()
    for name, embeds in (("a_0", bytes(40)), ("a_1", bytes(40)), ("b", b"1" * 40), ("c", None)):
        message = ask(name)
        copied = embeds and bytes(bytearray(embeds))  # as each is decoded
        message.inputs = RequestInputs(prompt_embeds=copied)
        core.add(message.handed(KVTransfer(sampled=(ord(name[-1]),))))  # other options
    first, second, other, none = (r.inputs.prompt_embeds for r in core.scheduler.requests.values())
    assert first is second
    assert (first, other, none) == (bytes(40), b"1" * 40, None)
    assert core._last_inputs.prompt_embeds is None
