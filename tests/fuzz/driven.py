"""An engine of a random world, driven step by step: see `tests.fuzz.combinations`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from quire import LLM, LoRARequest, SamplingParams
from quire.core.batch import Column, NewSequence
from quire.core.model_config import ModelConfig
from quire.core.options import RequestOptions
from quire.core.outputs import RequestOutput
from quire.core.request import EMBEDDED
from quire.core.sampling_params import RepetitionDetectionParams, RequestOutputKind
from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams, ThinkingMarks
from quire.models.adapters import lora_targets
from quire.runner.state import SequenceStates
from tests.fuzz.asked import VOCAB, Asked
from tests.fuzz.engines import MODELS, World, drafting_by, write_model

Answer = dict[str, Any]
"""What there is to compare of a completion."""


class Engine:
    """An engine that is told of requests, and of what befalls it, between two of its steps.

    Attributes:
        outputs: of each request, in order; `ended` says after which step they were all there.
    """

    def __init__(
        self, world: World, folder: Path, flags: dict[str, Any], before: Engine | None = None
    ) -> None:
        if before is None:
            model, flags = started_with(world, folder, flags)
            self.llm = LLM(model, **flags)
        else:
            self.llm = before.llm
        self.core = self.llm._core
        self.scheduler: Any = self.core.scheduler
        self.runner: Any = self.core.executor._worker._runner  # type: ignore[attr-defined]
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.ended: dict[str, int] = {}
        self.num_failed = 0
        self._folder = folder
        self._loads: Iterator[int] = itertools.count(1) if before is None else before._loads
        self._adapters: dict[int, LoRARequest] = {} if before is None else before._adapters

    def ask(self, name: str, asked: Asked, kind: RequestOutputKind) -> None:
        adapter = self._adapter(asked.adapter) if asked.adapter else None
        options = RequestOptions(asked.priority, asked.salt, adapter)
        engine, sink = self.llm._engine, self.llm._outputs
        prompt = prompt_of(asked, self.llm.model_config.hidden_size)
        params = sampling(asked, kind)
        self.llm._loop.run(engine.submit(prompt, params, name, sink, options))
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

    def _adapter(self, number: int) -> LoRARequest:
        if number not in self._adapters:
            folder = self._folder / f"a{number}"
            if not folder.exists():
                write_adapter(folder, self.llm.model_config, number)
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


def started_with(world: World, folder: Path, flags: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the model of a world, and all arguments of an engine with these flags."""
    flags = {**world.numbers, **flags}
    if any(asked.adapter for asked in world.asked):
        flags = {"enable_lora": True, "max_loras": 3, **flags}
    if any(asked.embeds for asked in world.asked):
        flags["enable_prompt_embeds"] = True
    if flags.get("kv_offloading_dir"):
        flags["kv_offloading_dir"] = str(folder / "blocks")
    if MODELS.get(world.model):
        flags["load_format"] = "dummy"
    model = write_model(folder / "model", world.model)
    return model, drafting_by(model, flags)


def _image(number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    shape = ((37, 53, 3), (60, 41, 3), (32, 32, 3))[number % 3]
    return random.integers(0, 256, shape, dtype=np.uint8)


def prompt_of(asked: Asked, width: int) -> dict[str, Any]:
    """Return what an engine is given for a request, whose model's rows have this width."""
    if not asked.embeds:
        images = {"multi_modal_data": {"image": [*map(_image, asked.images)]}}
        return {"prompt_token_ids": asked.prompt, **(images if asked.images else {})}
    rows = [np.random.default_rng(token).standard_normal(width) for token in asked.prompt]
    return {"prompt_embeds": 0.02 * np.array(rows, dtype=np.float32)}


def sampling(asked: Asked, kind: RequestOutputKind) -> SamplingParams:
    params = dict(asked.params)
    if structure := params.get("structured_outputs"):
        marks = structure.get("reasoning")
        marks = {"reasoning": ReasoningMarks(**marks)} if marks else {}
        params["structured_outputs"] = StructuredOutputsParams(**structure | marks)
    if wanted := params.get("repetition_detection"):
        params["repetition_detection"] = RepetitionDetectionParams(**wanted)
    if marks := params.get("thinking_marks"):
        params["thinking_marks"] = ThinkingMarks(**marks)
    return SamplingParams(**params, output_kind=kind)


def write_adapter(folder: Path, model: ModelConfig, number: int) -> None:
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
