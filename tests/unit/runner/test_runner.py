"""Steps of the runner on a fake decoder that checks its inputs (see `fakes`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import Column, ModelOutput, NewSequence
from quire.ops.torch_ops.provider import TorchOps
from quire.runner.prompt_logprobs import prompt_logprobs
from quire.runner.runner import ModelRunner
from quire.runner.state import SequenceStates
from tests.unit.runner.fakes import VOCAB, Driver, FakeDecoder, make_runner

PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_p": 0.9, "logprobs": 2},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.2, "seed": 7, "presence_penalty": 1.0, "min_tokens": 6, "min_p": 0.01},
    {"logprobs": 0, "prompt_logprobs": 3, "bad_words_token_ids": [[3], [4, 5]]},
]


def prompts(seed: int = 0) -> dict[str, list[int]]:
    rng = np.random.default_rng(seed)
    return {str(i): rng.integers(0, VOCAB, rng.integers(1, 40)).tolist() for i in range(6)}


def alone(name: str, prompt: list[int], count: int = 12) -> Driver:
    driver = Driver(make_runner(seqs=1), seed=99)
    driver.add(name, prompt, **PARAMS[int(name)])
    driver.finish(name, count)
    return driver


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_any_batch_chunking_and_preemption_gives_what_running_alone_gives(
    seed: int, block_size: int
) -> None:
    """Tokens, logprobs and prompt logprobs, to the bit."""
    rng = np.random.default_rng(seed)
    driver = Driver(make_runner(block_size=block_size), block_size, seed)
    wanted = 12
    for name, prompt in prompts(seed).items():
        driver.add(name, prompt, **PARAMS[int(name)])
    preemptions = 0
    while live := [n for n in driver.tokens if len(driver.output(n)) < wanted]:
        victim = str(rng.integers(6))
        if rng.random() < 0.15 and victim in live and driver.computed[victim]:
            driver.preempt(victim)
            preemptions += 1
            if not driver.output(victim):
                driver.prompt_logprobs.pop(victim, None)
        budget, counts = 64, {}
        for name in rng.permutation(live).tolist():
            count = min(int(rng.integers(0, 20)), driver.pending(name), budget)
            if count:
                counts[name] = count
                budget -= count
        if counts:
            driver.step(counts)
    assert preemptions > 0
    for name, prompt in prompts(seed).items():
        lone = alone(name, prompt)
        assert driver.output(name) == lone.output(name)
        assert driver.logprobs[name] == lone.logprobs[name]
        assert driver.prompt_logprobs[name] == lone.prompt_logprobs[name]
    assert not driver.errors


def num_sampled(output: ModelOutput) -> list[int]:
    """How many tokens each entry got."""
    return (output.sampled_token_ids >= 0).sum(axis=1).tolist()


def test_only_finished_prompts_sample_and_order_is_the_requests() -> None:
    driver = Driver(make_runner())
    driver.add("a", [1] * 20)
    driver.add("b", [2] * 3)
    driver.add("c", [3] * 9)
    output = driver.step({"c": 4, "b": 3, "a": 20})
    assert num_sampled(output) == [0, 1, 1]
    output = driver.step({"a": 1, "c": 5})
    assert num_sampled(output) == [1, 1]


@pytest.mark.parametrize("chunk", [1, 3, 8, 1000])
def test_prompt_logprobs_have_an_entry_for_each_token_but_the_first(chunk: int) -> None:
    prompt = prompts(3)["2"]
    driver = Driver(make_runner())
    driver.add("p", prompt, prompt_logprobs=4)
    driver.finish("p", 3, chunk)
    entries = driver.prompt_logprobs["p"]
    assert [entry.token_ids[0] for entry in entries] == prompt[1:]
    # By definition: the logits after the first p tokens, as sampling would see them.
    for p in range(1, len(prompt)):
        lone = Driver(make_runner())
        lone.add("x", prompt[:p], allowed_token_ids=[prompt[p]], logprobs=4)
        lone.finish("x", 1)
        assert lone.logprobs["x"] == [entries[p - 1]]


def test_prompt_logits_exist_a_few_rows_at_a_time() -> None:
    sizes = []

    def compute(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return hidden

    hidden = torch.randn(150, 10, generator=torch.Generator().manual_seed(0))
    targets = np.arange(150, dtype=np.int32) % 10
    entries = prompt_logprobs(TorchOps(), compute, hidden, targets, 1)
    assert sizes == [64, 64, 22]
    expected = hidden.double().log_softmax(-1)
    got = [entry.logprobs[0] for entry in entries]
    np.testing.assert_allclose(got, expected[range(150), [i % 10 for i in range(150)]].numpy())


def test_a_sick_row_ends_its_request_only() -> None:
    sick = {"rows": [1]}

    def poison(logits: Tensor) -> None:
        logits[[row for row in sick["rows"] if row < len(logits)], 5] = float("nan")

    healthy = Driver(make_runner())
    driver = Driver(make_runner(FakeDecoder(poison)))
    for d in (healthy, driver):
        for name in "abc":
            d.add(name, [ord(name) % VOCAB, 7], logprobs=1)
        output = d.step(dict.fromkeys("abc", 2))
    assert list(driver.errors) == ["b"]
    assert num_sampled(output) == [1, 0, 1]
    assert "b" not in output.logprobs
    sick["rows"] = []
    driver.remove("b")
    for d in (healthy, driver):
        for _ in range(4):
            d.step(dict.fromkeys("ac", 1))
    for name in "ac":
        assert driver.output(name) == healthy.output(name)
        assert driver.logprobs[name] == healthy.logprobs[name]


def test_a_sick_prompt_row_ends_its_request_only() -> None:
    def poison(logits: Tensor) -> None:
        if len(logits) == 9:  # the prompt's rows
            logits[4, 3] = float("inf")

    driver = Driver(make_runner(FakeDecoder(poison)))
    driver.add("a", list(range(10)), prompt_logprobs=1)
    driver.add("b", [1, 2], prompt_logprobs=1)
    output = driver.step({"a": 10, "b": 2})
    assert list(output.errors) == ["a"]
    assert num_sampled(output) == [0, 1]
    assert list(output.prompt_logprobs) == ["b"]


@pytest.mark.parametrize("where", ["forward", "compute_logits"])
def test_a_step_that_raises_leaves_no_trace(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same step may be asked again, or others without the offender."""
    driver = Driver(make_runner())
    driver.add("gone", [9, 9])
    driver.add("old", [1, 2, 3, 4, 5, 6, 7], **PARAMS[4])
    driver.step({"gone": 2, "old": 7})
    driver.step({"old": 1})
    driver.remove("gone")
    driver.add("new", [4, 5, 6], **PARAMS[2])
    batch = driver.schedule({"new": 3, "old": 1})
    assert 1 in batch.new_blocks[0]
    with monkeypatch.context() as patch:

        def fail(*args: object, **options: object) -> Tensor:
            raise RuntimeError("injected")

        patch.setattr(FakeDecoder, where, fail)
        for _ in range(10):  # more often than there are slots
            with pytest.raises(RuntimeError, match="injected"):
                driver.runner.execute(batch)
    states = driver.runner.states
    assert len(states) == 1
    assert "old" in states
    driver.update(batch, driver.runner.execute(batch))
    driver.finish("old", 12)
    driver.finish("new", 12)
    for name, number in (("old", 4), ("new", 2)):
        lone = Driver(make_runner(seqs=1))
        lone.add(name, driver.tokens[name][: driver.prompt[name]], **PARAMS[number])
        assert driver.output(name) == lone.finish(name, 12)


def test_what_a_failed_step_added_may_still_be_removed() -> None:
    driver = Driver(make_runner())
    driver.add("a", [1, 2, 3])
    batch = driver.schedule({"a": 3})
    model, driver.runner.model = driver.runner.model, None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        driver.runner.execute(batch)
    driver.runner.model = model
    driver.remove("a")
    assert len(driver.step({}).sampled_token_ids) == 0
    driver.add("a", [1, 2, 3])
    assert len(driver.finish("a", 2)) == 2


def test_a_sequence_may_fill_the_context() -> None:
    driver = Driver(make_runner(length=24))
    driver.add("a", [1, 2, 3])
    assert len(driver.finish("a", 21)) == 21


def test_an_empty_step_only_removes() -> None:
    driver = Driver(make_runner())
    driver.add("a", [1])
    driver.step({"a": 1})
    driver.remove("a")
    assert len(driver.step({}).sampled_token_ids) == 0
    assert len(driver.runner.states) == 0


# -- several steps at once -----------------------------------------------------------------


def decoding(runner: ModelRunner | None = None, **params: Any) -> Driver:
    """All of `prompts`, with a first token each."""
    driver = Driver(runner or make_runner())
    for name, prompt in prompts().items():
        driver.add(name, prompt, **{"ignore_eos": True, **PARAMS[int(name)], **params})
    for name, prompt in prompts().items():
        driver.step({name: len(prompt)})
    return driver


def test_several_steps_at_once_give_what_single_ones_give() -> None:
    driver = decoding()
    for num_steps in (5, 1, 2, 4):
        assert driver.step(dict.fromkeys(prompts(), 1), num_steps).times.model > 0
    for name, prompt in prompts().items():
        lone = alone(name, prompt, 13)
        assert driver.output(name) == lone.output(name)
        assert driver.logprobs[name] == lone.logprobs[name]
    assert not driver.errors


def test_who_ends_on_the_way_is_not_computed_any_more() -> None:
    usual = decoding()
    usual.step(dict.fromkeys(prompts(), 1), 6)
    stop = usual.output("0")[2]
    driver = decoding(stop_token_ids=[stop])
    output = driver.step(dict.fromkeys(prompts(), 1), 6)
    for entry, name in enumerate(prompts()):
        if "min_tokens" in PARAMS[int(name)]:  # it samples otherwise, with a stop token
            continue
        expected = usual.output(name)[1:]
        if stop in expected:
            del expected[expected.index(stop) + 1 :]
        assert output.sampled_token_ids[entry].tolist() == expected + [-1] * (6 - len(expected))
    assert (output.sampled_token_ids[0] >= 0).sum() == 2
    states = driver.runner.states
    (slots,) = np.nonzero(states.num_tokens)
    assert sorted(states.num_tokens[slots].tolist()) == sorted(map(len, driver.tokens.values()))
    assert (states.num_computed[slots] == states.num_tokens[slots] - 1).all()


def test_a_step_scheduled_ahead_begins_where_the_runner_is() -> None:
    """It was scheduled as if every token had come that might have."""
    usual = decoding()
    usual.step(dict.fromkeys(prompts(), 1), 6)
    stop = usual.output("0")[2]
    driver = decoding(stop_token_ids=[stop])
    driver.step(dict.fromkeys(prompts(), 1), 6)
    lengths = {name: len(tokens) for name, tokens in driver.tokens.items()}
    batch = driver.schedule(dict.fromkeys(prompts(), 1))
    late = [8 - len(driver.output(name)) for name in prompts()]
    assert max(late) > 0
    batch = replace(batch, num_computed_tokens=batch.num_computed_tokens + late)
    driver.update(batch, driver.runner.execute(batch))
    for name, prompt in prompts().items():
        assert len(driver.tokens[name]) == lengths[name] + 1
        if "min_tokens" not in PARAMS[int(name)]:
            lone = alone(name, prompt, len(driver.output(name)))
            assert driver.output(name) == lone.output(name)


def test_entries_yield_up_to_their_own_number_of_tokens() -> None:
    usual = decoding()
    usual.step(dict.fromkeys(prompts(), 1), 6)
    driver = decoding()
    batch = driver.schedule(dict.fromkeys(prompts(), 1), 6)
    most = np.array([1, 6, 2, 1, 3, 4])
    output = driver.runner.execute(replace(batch, max_new_tokens=most))
    assert num_sampled(output) == most.tolist()
    assert output.num_passes == 6
    driver.update(batch, output)
    for name in prompts():
        assert driver.output(name) == usual.output(name)[: len(driver.output(name))]
    driver.step(dict.fromkeys(prompts(), 1))
    for name, prompt in prompts().items():
        assert driver.output(name) == alone(name, prompt, len(driver.output(name))).output(name)


def test_a_row_that_gets_sick_on_the_way_ends_alone() -> None:
    """It yields what came before; the next step meets the sick row first, and reports it."""
    calls = 0

    def spoil(logits: Tensor) -> None:
        nonlocal calls
        calls += len(logits) == 6  # not the prompts
        if calls == 3 and len(logits) == 6:
            logits[1] = torch.nan
        if len(logits) == 1 and calls > 3:
            logits[0] = torch.nan

    usual = decoding()
    usual.step(dict.fromkeys(prompts(), 1), 5)
    driver = decoding(make_runner(FakeDecoder(spoil)))
    output = driver.step(dict.fromkeys(prompts(), 1), 5)
    assert not output.errors
    assert num_sampled(output) == [5, 2, 5, 5, 5, 5]
    for name in prompts():
        assert usual.output(name)[: len(driver.output(name))] == driver.output(name)
    calls = 4
    assert list(driver.step({"1": 1}).errors) == ["1"]


def test_a_fault_on_the_way_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = decoding()
    usual.step(dict.fromkeys(prompts(), 1), 5)
    driver = decoding()
    batch = driver.schedule(dict.fromkeys(prompts(), 1), 5)
    forward, calls = FakeDecoder.forward, 0

    def fail(self: FakeDecoder, *args: Any, **options: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("injected")
        return forward(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FakeDecoder, "forward", fail)
        with pytest.raises(RuntimeError, match="injected"):
            driver.runner.execute(batch)
    driver.update(batch, driver.runner.execute(batch))
    for name in prompts():
        assert driver.output(name) == usual.output(name)


# -- drafts --------------------------------------------------------------------------------


class Guesser:
    """Guesses what a sequence yields alone, and now and then something else."""

    def __init__(self, answers: dict[str, list[int]], rng: np.random.Generator) -> None:
        self.answers = {tuple(prompt): answers[name] for name, prompt in prompts().items()}
        self.rng = rng
        self.guesses = 0
        self.slots: set[int] = set()
        self.meters: tuple[()] = ()

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        assert slot not in self.slots
        self.slots.add(slot)

    def end(self, states: SequenceStates, slot: int) -> None:
        self.slots.remove(slot)

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        counts = np.zeros_like(most)
        for entry, (slot, count) in enumerate(zip(slots.tolist(), most.tolist(), strict=True)):
            assert slot in self.slots
            end = int(states.num_tokens[slot])
            guesses = self.guess(states.token_ids[slot, :end], count)[:count]
            states.token_ids[slot, end : end + len(guesses)] = guesses
            counts[entry] = len(guesses)
        return counts

    def guess(self, token_ids: NDArray[np.int32], count: int) -> list[int]:
        known = tuple(token_ids.tolist())
        prompt = next(prompt for prompt in self.answers if known[: len(prompt)] == prompt)
        answer, done = self.answers[prompt], len(known) - len(prompt)
        guesses = answer[done : done + int(self.rng.integers(0, count + 2))]
        self.guesses += len(guesses)
        wrong = self.rng.random(len(guesses)) < 0.2
        return np.where(wrong, self.rng.integers(0, VOCAB, len(guesses)), guesses).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_drafts_change_no_token(seed: int) -> None:
    """Nor a log-probability, whatever was guessed, and however many tokens a step may yield."""
    rng, wanted = np.random.default_rng(seed), 30
    lone = {name: alone(name, prompt, wanted + 6) for name, prompt in prompts().items()}
    guesser = Guesser({name: driver.output(name) for name, driver in lone.items()}, rng)
    driver = decoding(make_runner(proposer=guesser, tokens=40))
    passes = 0
    while live := [name for name in prompts() if len(driver.output(name)) < wanted]:
        batch = driver.schedule(dict.fromkeys(live, 1), 6, num_passes=1)
        most = rng.integers(1, 7, len(live))
        output = driver.runner.execute(replace(batch, max_new_tokens=most))
        assert (np.array(num_sampled(output)) <= most).all()
        assert min(num_sampled(output)) >= 1
        assert output.num_passes == 1
        driver.update(batch, output)
        passes += 1
    assert passes < wanted - 4  # drafts were right
    assert guesser.guesses > sum(len(driver.output(name)) for name in prompts()) - 6 * passes
    for name in prompts():
        told = len(driver.output(name))
        assert driver.output(name) == lone[name].output(name)[:told]
        assert driver.logprobs[name] == lone[name].logprobs[name][: len(driver.logprobs[name])]
    assert not driver.errors


def test_nothing_counts_behind_a_stop_token_in_drafts() -> None:
    answers = {name: alone(name, prompt, 12).output(name) for name, prompt in prompts().items()}
    stop = answers["0"][3]
    sure = Guesser(answers, np.random.default_rng(0))
    sure.guess = lambda tokens, count: answers["0"][1 : 1 + count]  # type: ignore[method-assign]
    driver = Driver(make_runner(proposer=sure))
    driver.add("0", prompts()["0"], stop_token_ids=[stop])
    driver.step({"0": len(prompts()["0"])})
    driver.step({"0": 1}, 8, num_passes=1)
    assert driver.output("0") == answers["0"][: answers["0"].index(stop) + 1]


def test_a_sick_row_behind_drafts_is_an_error_once_it_comes_first() -> None:
    def spoil(logits: Tensor) -> None:
        if sick:
            logits[-1] = torch.nan

    sick = False
    answer = alone("0", prompts()["0"], 12).output("0")
    guesser = Guesser(dict.fromkeys(prompts(), answer), np.random.default_rng(0))
    guesser.guess = lambda tokens, count: answer[1 : 1 + count]  # type: ignore[method-assign]
    driver = Driver(make_runner(FakeDecoder(spoil), proposer=guesser))
    driver.add("0", prompts()["0"])
    driver.step({"0": len(prompts()["0"])})
    sick = True
    assert num_sampled(driver.step({"0": 1}, 4, num_passes=1)) == [3]
    assert not driver.errors
    assert driver.output("0") == answer[:4]
    assert list(driver.step({"0": 1}).errors) == ["0"]
