"""Collect evidence for `quire explain` from an offline run."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
import numpy as np

from quire.bench.engine import BenchEngine
from quire.bench.serving.workload import text_prompts, token_prompts
from quire.core.errors import InvalidRequestError
from quire.core.op_profile import OpProfile
from quire.explain.cards import cards_between, read_cards
from quire.explain.collect import collect
from quire.explain.evidence import Evidence, Window
from quire.explain.probe import Probe
from quire.system.proc import family
from quire.system.records import dataclass

PROFILED_STEPS = 100_000
"""More steps than a run has, so that all of them are profiled."""
INFERRED_SECONDS = 8.0
"""Approximate duration of a load that imitates a server's."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A load for explaining an engine, or for proving a change.

    Attributes:
        input_len: tokens of a prompt, with the shared prefix.
        output_len: tokens of an answer.
        prefix_len: tokens that all prompts share.
        concurrency: requests in flight over HTTP; offline all arrive at once.
        text: prompts are texts, not token ids.
    """

    num_prompts: int = 8
    input_len: int = 128
    output_len: int = 64
    prefix_len: int = 0
    concurrency: int = 8
    text: bool = False

    def prompts(self, vocab_size: int, seed: list[int]) -> list[list[int]]:
        """Return token ids; prompts of different seeds share only the prefix."""
        own = token_prompts(self.num_prompts, self.input_len - self.prefix_len, vocab_size, seed)
        shared = np.random.default_rng([0, vocab_size]).integers(0, vocab_size, self.prefix_len)
        return [[*shared.tolist(), *prompt] for prompt in own]

    def texts(self, seed: list[int]) -> list[str]:
        """Return the same as texts, with about one word per token."""
        own = text_prompts(self.num_prompts, self.input_len - self.prefix_len, seed)
        [shared] = text_prompts(1, self.prefix_len, [0])
        return [f"{shared} {prompt}".strip() for prompt in own]


def observe(engine: BenchEngine, demand: Demand, seed: list[int]) -> Evidence:
    """Run a load on an offline engine, and return the evidence."""
    llm = engine.llm
    profiling = False
    with suppress(InvalidRequestError):  # a profile is already running
        llm.call("start_op_profile", PROFILED_STEPS)
        profiling = True
    ops: OpProfile | None = None
    config = llm.resolved.config
    pids = family(os.getpid()) if config.device == "cuda" else []
    cards = read_cards(pids) if pids else []
    probe = Probe(llm.stats)
    llm.stats.observer = probe.sample
    try:
        engine.generate(demand.prompts(engine.vocab_size, seed), demand.output_len)
        watched = probe.end()
    finally:
        llm.stats.observer = None
        if profiling:
            ops = msgspec.convert(llm.call("stop_op_profile"), OpProfile)
    if pids:
        cards = cards_between(cards, read_cards(pids))
    return collect(watched, llm.args, config, llm.facts, llm.phases, ops, offline=True, cards=cards)


def demand_of(window: Window, max_model_len: int) -> Demand:
    """Return a load like the server's: the same concurrency and lengths."""
    requests = max(1, window.requests)
    concurrency = max(1, round(window.running + window.waiting))
    prompt = max(1, round(window.prompt_tokens / requests))
    if window.finished:
        output = round(window.generation_tokens / window.finished)
    else:  # every request runs longer than the window
        output = round(window.generation_tokens / concurrency)
    output = max(2, min(output, max_model_len // 2))
    prompt = min(prompt, max_model_len - output)
    rounds = INFERRED_SECONDS * window.output_tok_s / (output * concurrency)
    shared = round(window.repeated_tokens / requests)
    return Demand(
        num_prompts=concurrency * max(1, round(rounds)),
        input_len=prompt,
        output_len=output,
        prefix_len=min(shared, prompt - 1),
        concurrency=concurrency,
        text=window.share("tokenize") > 0.05,
    )
