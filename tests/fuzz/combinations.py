"""Features combined at random: `python -m tests.fuzz.combinations`.

Whatever else an engine does, a request's tokens, log-probabilities and text are those of the
request alone in a plain engine: nobody beside it, its prompt in one piece, nothing cached. No
block is left behind, prefixes are found, and the counters add up.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from quire import LLM, LoRARequest, SamplingParams
from quire.core.batch import Column, NewSequence
from quire.core.errors import ConfigError
from quire.core.model_config import ModelConfig
from quire.core.options import RequestOptions
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.request import EMBEDDED
from quire.core.sampling_params import RequestOutputKind
from quire.core.structured_outputs import StructuredOutputsParams
from quire.models.adapters import lora_targets
from quire.runner.state import SequenceStates
from tests.fuzz.asked import VOCAB, Asked
from tests.fuzz.engines import (
    MODELS,
    PLENTY,
    World,
    drafting_by,
    draw_world,
    write_model,
)

MAX_STEPS = 5_000
PLAIN: dict[str, Any] = {
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "num_gpu_blocks_override": 128,
}
Answer = dict[str, Any]
"""What there is to compare of a completion."""


class Engine:
    """An engine that is told of requests, and of what befalls it, between two of its steps.

    Attributes:
        outputs: of each request, in order; `ended` says after which step they were all there.
    """

    def __init__(self, world: World, folder: Path, flags: dict[str, Any]) -> None:
        flags = {**world.numbers, **flags}
        if any(asked.adapter for asked in world.asked):
            flags = {"enable_lora": True, "max_loras": 3, **flags}
        if any(asked.embeds for asked in world.asked):
            flags["enable_prompt_embeds"] = True
        if flags.get("kv_offloading_dir"):
            flags["kv_offloading_dir"] = str(folder / "blocks")
        if MODELS[world.model]:
            flags["load_format"] = "dummy"
        model = write_model(folder / "model", world.model)
        self.llm = LLM(model, **drafting_by(model, flags))
        self.core = self.llm._core
        self.scheduler: Any = self.core.scheduler
        self.runner: Any = self.core.executor._worker._runner  # type: ignore[attr-defined]
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.ended: dict[str, int] = {}
        self.num_failed = 0
        self._folder = folder
        self._loads = itertools.count(1)
        self._adapters: dict[int, LoRARequest] = {}

    def ask(self, name: str, asked: Asked, kind: RequestOutputKind) -> None:
        adapter = self._adapter(asked.adapter) if asked.adapter else None
        options = RequestOptions(asked.priority, asked.salt, adapter)
        engine, sink = self.llm._engine, self.llm._outputs
        params = _sampling(asked, kind)
        self.llm._loop.run(engine.submit(self._prompt(asked), params, name, sink, options))
        self.outputs[name] = []

    def leave(self, name: str) -> None:
        """The client of a request, which may have ended, goes away."""
        self.llm._loop.run(self.llm._engine.abort(name))
        for last in self.llm._outputs.take():
            self.outputs[name].append(last)

    def step(self, number: int = 0) -> None:
        if self.llm._steps.step():
            for output in self.llm._outputs.take():
                self.outputs[output.request_id].append(output)
                if output.finished:
                    self.ended[output.request_id] = number
            self.scheduler.check_integrity()

    def unload(self, number: int) -> None:
        """Whoever asks for the adapter from now on has it loaded anew."""
        if adapter := self._adapters.pop(number, None):
            self.llm._loop.run(self.llm._engine.remove_lora(adapter.lora_int_id))

    def fail_at(self, calls: list[int]) -> None:
        """Have these forward passes raise, every other one once it has computed all."""
        compute, numbers = self.runner._compute, itertools.count(1)

        def failing(*args: Any) -> Any:
            number = next(numbers)
            fails = number in calls
            self.num_failed += fails
            result = compute(*args) if number % 2 or not fails else None
            if fails:
                raise RuntimeError("injected")
            return result

        self.runner._compute = failing

    def draft_from(self, world: World, answers: list[list[Answer]]) -> None:
        """Have drafts that mostly are the right tokens."""
        oracle = Oracle(
            [
                ([EMBEDDED] * len(asked.prompt) if asked.embeds else asked.prompt)
                + answer["tokens"]
                for asked, each in zip(world.asked, answers, strict=True)
                for answer in each
            ]
        )
        self.runner.states._proposer = self.runner._passes._proposer = oracle

    def _prompt(self, asked: Asked) -> dict[str, Any]:
        if not asked.embeds:
            return {"prompt_token_ids": asked.prompt}
        width = self.llm.model_config.hidden_size
        rows = [np.random.default_rng(token).standard_normal(width) for token in asked.prompt]
        return {"prompt_embeds": 0.02 * np.array(rows, dtype=np.float32)}

    def _adapter(self, number: int) -> LoRARequest:
        if number not in self._adapters:
            folder = self._folder / f"a{number}"
            if not folder.exists():
                _write_adapter(folder, self.llm.model_config, number)
            wanted = LoRARequest(f"a{number}", next(self._loads), str(folder))
            self._adapters[number] = self.llm._loop.run(self.llm._engine.add_lora(wanted))
        return self._adapters[number]


class Oracle:
    """Guesses the tokens of known answers, and now and then others.

    Args:
        answers: prompt and output of each completion.
    """

    def __init__(self, answers: list[list[int]]) -> None:
        self._answers = answers
        self._random = np.random.default_rng(0)

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        pass

    def end(self, states: SequenceStates, slot: int) -> None:
        pass

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        counts = np.zeros_like(most)
        for entry, (slot, count) in enumerate(zip(slots.tolist(), most.tolist(), strict=True)):
            end = int(states.num_tokens[slot])
            known = states.token_ids[slot, :end].tolist()
            found = [each for each in self._answers if each[:end] == known]
            guesses = np.array(found[0][end : end + count] if found else [], dtype=np.int32)
            wrong = self._random.random(len(guesses)) < 0.1
            guesses[wrong] = self._random.integers(0, VOCAB, int(wrong.sum()))
            states.token_ids[slot, end : end + len(guesses)] = guesses
            counts[entry] = len(guesses)
        return counts


def _sampling(asked: Asked, kind: RequestOutputKind) -> SamplingParams:
    params = dict(asked.params)
    if structure := params.pop("structured_outputs", None):
        params["structured_outputs"] = StructuredOutputsParams(**structure)
    return SamplingParams(**params, output_kind=kind)


def _write_adapter(folder: Path, model: ModelConfig, number: int) -> None:
    """An adapter; each has another rank, and the third changes some layers only."""
    random, rank, tensors = np.random.default_rng(number), 4 * number, {}
    for i, (module, target) in enumerate(lora_targets(model).items()):
        if number < 3 or i % 3 == 0:
            for half, shape in (("A", (rank, target.columns)), ("B", (target.rows, rank))):
                values = 0.05 * random.standard_normal(shape)
                tensors[f"base_model.model.{module}.lora_{half}.weight"] = values.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps({**said, "bias": "none"}))


def told(outputs: list[RequestOutput], kind: RequestOutputKind) -> list[Answer]:
    """What a request's outputs say in all, a completion each."""
    if not outputs:
        return []
    if kind is not RequestOutputKind.DELTA:
        outputs = outputs[-1:]
    parts: dict[int, list[CompletionOutput]] = {}
    for completion in itertools.chain.from_iterable(output.outputs for output in outputs):
        parts.setdefault(completion.index, []).append(completion)
    prompts = [o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None]
    assert len(prompts) < 2, "the prompt's log-probabilities were told twice"
    assert all(len(p) == len(outputs[0].prompt_token_ids) for p in prompts), "a part of the prompt"
    return [_answer(parts[index], *prompts) for index in sorted(parts)]


def _answer(parts: list[CompletionOutput], prompt_logprobs: Any = None) -> Answer:
    last = parts[-1]
    wants = last.logprobs is not None
    return {
        "tokens": [token for part in parts for token in part.token_ids],
        "logprobs": [each for part in parts for each in part.logprobs or []] if wants else None,
        "prompt_logprobs": prompt_logprobs,
        "text": "".join(part.text for part in parts),
        "text_ends": [end for part in parts for end in part.text_ends or []] if wants else None,
        "cumulative_logprob": last.cumulative_logprob,
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
    }


def alone(world: World, folder: Path) -> list[list[Answer]]:
    """Each request's answer, by itself in a plain engine."""
    final, answers = RequestOutputKind.FINAL_ONLY, []
    engine = Engine(world, folder, PLAIN)
    with engine.llm:
        for asked in world.asked:
            engine.ask("r", asked, final)
            while engine.core.has_work():
                engine.step()
            answers.append(told(engine.outputs["r"], final))
    for answer in itertools.chain.from_iterable(answers):
        assert answer["finish_reason"] in ("stop", "length"), answer
    return answers


def together(
    world: World, folder: Path, expected: list[list[Answer]]
) -> tuple[Engine, list[list[Answer]]]:
    """All of them, as the world has it."""
    engine = Engine(world, folder, world.flags)
    if world.oracle:
        engine.draft_from(world, expected)
    kinds = [RequestOutputKind(asked.kind) for asked in world.asked]
    names = [f"r{i}" for i in range(len(world.asked))]
    with engine.llm:
        engine.fail_at(world.failures)
        for step in range(MAX_STEPS + 100 * len(world.asked)):
            if step in world.resets:
                engine.llm.call("reset_prefix_cache")
            for _, number in filter(lambda reload: reload[0] == step, world.reloads):
                engine.unload(number)
            for name, asked, kind in zip(names, world.asked, kinds, strict=True):
                if asked.comes == step:
                    engine.ask(name, asked, kind)
                if asked.stays is not None and asked.comes + asked.stays == step:
                    engine.leave(name)
            engine.step(step)
            if len(engine.outputs) == len(names) and not engine.core.has_work():
                break
        else:
            raise AssertionError("the requests never end")
        _check_end(engine)
    outputs = [engine.outputs[name] for name in names]
    _check_counts(engine, world, outputs)
    _check_hits(engine, world, outputs)
    return engine, [told(*pair) for pair in zip(outputs, kinds, strict=True)]


def _check_end(engine: Engine) -> None:
    """Nothing is left."""
    engine.scheduler.check_integrity()
    assert engine.scheduler.kv.pool.num_used == 0, "blocks are left"
    left = engine.runner.states._slots.keys() - set(engine.scheduler._steps.removed)
    assert not left, f"the runner still has {left}"
    host = engine.scheduler.stats().host_tier
    assert host is None or host.num_requests_swapped == 0, "swapped blocks are left"


def _check_counts(engine: Engine, world: World, outputs: list[list[RequestOutput]]) -> None:
    stats = engine.llm.stats
    assert stats.finished.total() == sum(asked.params.get("n", 1) for asked in world.asked)
    begun = [given[-1] for given in outputs if given and given[-1].metrics.first_token_time]
    assert stats.prompt_tokens == sum(len(output.prompt_token_ids) for output in begun)
    assert stats.cached_tokens == sum(output.num_cached_tokens for output in begun)
    for output in begun:
        assert 0 <= output.num_cached_tokens < len(output.prompt_token_ids), "too many are cached"
        assert world.flags["enable_prefix_caching"] or not output.num_cached_tokens, "no cache"
    if all(asked.stays is None for asked in world.asked):  # those were told all
        counts = [
            len(completion.token_ids)
            for asked, given in zip(world.asked, outputs, strict=True)
            for output in (given if asked.kind == RequestOutputKind.DELTA else given[-1:])
            for completion in output.outputs
        ]
        assert stats.generation_tokens == sum(counts), "output tokens were miscounted"


def _check_hits(engine: Engine, world: World, outputs: list[list[RequestOutput]]) -> None:
    """Where nothing is evicted or forgotten, whoever comes after another has ended has its
    prefix from the cache."""
    flags, size = world.flags, world.flags["block_size"]
    plenty = flags["num_gpu_blocks_override"] >= PLENTY
    if not (plenty and flags["enable_prefix_caching"]) or world.resets or world.failures:
        return
    if engine.scheduler.kv.states is not None:
        return  # a prefix is found where there is a snapshot (tests/unit/scheduler/test_states.py)
    for i, asked in enumerate(world.asked):
        if "prompt_logprobs" in asked.params or asked.params.get("n", 1) > 1 or not outputs[i]:
            continue
        for j, earlier in enumerate(world.asked):
            alike = (asked.salt, asked.adapter) == (earlier.salt, earlier.adapter)
            if engine.ended.get(f"r{j}", MAX_STEPS) < asked.comes and alike:
                embeds = asked.embeds, earlier.embeds
                shared = _num_shared(asked.prompt, earlier.prompt) if len(set(embeds)) == 1 else 0
                least = min(shared, len(asked.prompt) - 1) // size * size
                got = outputs[i][-1]
                begun = got.metrics.first_token_time
                assert not begun or got.num_cached_tokens >= least, f"{i} found less than {least}"


def _num_shared(one: list[int], other: list[int]) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def difference(got: list[Answer], wanted: list[Answer]) -> str | None:
    """In what the answers differ; those that were cut short may be the beginning of the others."""
    for index, (one, other) in enumerate(zip(got, wanted, strict=False)):
        cut = one["finish_reason"] in ("abort", "error")
        for key, a in one.items():
            b = other[key]
            if cut and (a is None or key not in ("tokens", "logprobs", "prompt_logprobs")):
                continue
            if a != (b[: len(a)] if cut else b):
                return f"completion {index}: {key}: {a!r} is not {b!r}"
    ended = all(answer["finish_reason"] not in ("abort", "error", None) for answer in got)
    return "completions are missing" if got and ended and len(got) < len(wanted) else None


def run(world: World) -> Counter[str]:
    """Live through it, and count what befell it.

    Raises:
        AssertionError: a promise is broken.
    """
    with tempfile.TemporaryDirectory() as temporary:
        expected = alone(world, Path(temporary))
        engine, got = together(world, Path(temporary), expected)
    for i, (asked, one, other) in enumerate(zip(world.asked, got, expected, strict=True)):
        found = difference(one, other)
        assert found is None, f"request {i}: {found}"
        reasons = {answer["finish_reason"] for answer in one}
        assert engine.num_failed or "error" not in reasons, f"request {i}: {one}"
        assert asked.stays is not None or "abort" not in reasons, f"request {i} was aborted"
    stats = engine.scheduler.stats()
    host = stats.host_tier
    return Counter(
        preempted=stats.num_preemptions,
        swapped=host.swapped_in if host else 0,
        loaded=host.loaded if host else 0,
        failed=engine.num_failed,
        hits=stats.prefix_cache_hits,
        drafted=stats.spec_decoding.num_accepted_tokens if stats.spec_decoding else 0,
    )


def case(random: Random) -> str:
    """One world; the rarest of what befell it."""
    world = draw_world(random)
    try:
        befell = run(world)
    except ConfigError as error:
        return f"refused: {error.param}"
    except BaseException as error:
        error.add_note(repr(world))
        raise
    return next((what for what, count in befell.items() if count), "plain")


if __name__ == "__main__":
    from tests.fuzz.replay import main

    logging.disable(logging.ERROR)
    sys.exit(main("tests.fuzz.combinations", case, 500))
