"""Speculative decoding's bars: `python benchmarks/speculation.py [NAME …] [--json FILE.jsonl]`.

Two served engines take turns, one of them with drafts. Names:

* `embedded`: the built-in model with its draft, T = 0.7, one stream;
* `streams`: 32 streams, where no drafts should be chosen;
* `synthetic`: a real-shaped model whose drafts are accepted at a rate of 0.8, whatever they are;
* `replay`: a real-shaped model answers a seeded request again, and `suffix` finds its first answer;
* `indexes`: microseconds per token of `ngram` and `suffix`, and their memory, by context.

Random weights repeat no text. A seeded request gives the same answer again, so its drafts are
right, as in an agent's second turn over the same file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from quire import SamplingParams
from quire.bench.machine import circumstances
from quire.bench.results.report import write_json
from quire.core.config import SpeculativeConfig
from quire.core.outputs import RequestMetrics
from quire.executor.resident import resident_now
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs
from quire.spec.text_index import ngram_proposer, suffix_proposer

Row = dict[str, Any]
REPETITIONS = 5
REAL = {"model": "opt-125m", "load_format": "dummy", "max_model_len": 1024}
DRAFT = {"model": "embedded-draft", "num_speculative_tokens": 4}
CONTEXTS = [2**10, 2**13, 2**15, 2**17]
DRAFTED_TOKENS = 2_000


class Served:
    """An engine whose core is a process of its own, as behind a server."""

    def __init__(self, **args: Any) -> None:
        self._runner = asyncio.Runner()
        self.engine = self._runner.run(AsyncLLM.start(EngineArgs(**args)))

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.shutdown()
        self._runner.close()

    def ask(self, prompts: list[Any], params: list[SamplingParams]) -> list[RequestMetrics]:
        """Answer all prompts at the same time."""

        async def answers() -> list[RequestMetrics]:
            pairs = zip(prompts, params, strict=True)
            return await asyncio.gather(*(self._answer(*pair) for pair in pairs))

        return self._runner.run(answers())

    async def _answer(self, prompt: Any, params: SamplingParams) -> RequestMetrics:
        async for output in self.engine.generate(prompt, params):
            metrics = output.metrics
        return metrics


class Answers(NamedTuple):
    """What a round of requests took.

    Attributes:
        speed: tokens/s while all of them decode.
    """

    speed: float
    tokens: int
    drafts: int
    accepted: int


Ask = Callable[[Served, int], Answers]
"""Answers the requests of a round, which has this number."""


def in_turns(plain: Served, drafting: Served, ask: Ask) -> Row:
    """Return medians of tokens/s, and of their ratio, over rounds of both engines."""
    for engine in (plain, drafting):
        ask(engine, REPETITIONS)
    rounds = []
    for number in range(REPETITIONS):
        pair = (plain, drafting) if number % 2 else (drafting, plain)
        answers = {engine: ask(engine, number) for engine in pair}
        rounds.append((answers[plain], answers[drafting]))
    ratios = sorted(after.speed / before.speed for before, after in rounds)
    tokens, drafts, accepted = (
        sum(getattr(after, name) for _, after in rounds) for name in Answers._fields[1:]
    )
    return {
        "plain_tok_s": round(statistics.median(before.speed for before, _ in rounds), 1),
        "drafting_tok_s": round(statistics.median(after.speed for _, after in rounds), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(ratios[0], 3),
        "ratio_max": round(ratios[-1], 3),
        "drafts": drafts,
        "accepted": round(accepted / drafts, 3) if drafts else None,
        "tokens_per_pass": round(tokens / (tokens - accepted), 2),
    }


def decode(
    streams: int, tokens: int, temperature: float, *, text: bool = False, again: bool = False
) -> Ask:
    """Return a function that measures `streams` sequences, in each round others unless `again`."""

    def ask(engine: Served, number: int) -> Answers:
        seeds = [i + streams * number * (not again) for i in range(streams)]
        prompts = [
            "Once upon a time" if text else {"prompt_token_ids": [5 + i, 9, 7, 11]}
            for i in range(streams)
        ]
        params = [
            SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)
            for seed in seeds
        ]
        metrics = engine.ask(prompts, params)
        begin = max(m.first_token_time for m in metrics)
        end = max(m.last_token_time for m in metrics)
        return Answers(
            streams * (tokens - 1) / (end - begin),
            streams * tokens,
            sum(m.num_draft_tokens for m in metrics),
            sum(m.num_accepted_tokens for m in metrics),
        )

    return ask


def compare(name: str, ask: Ask, config: Row, **engine: Any) -> Row:
    """Return a row of two engines, one with the speculative config."""
    with ExitStack() as stack:
        plain, drafting = (
            stack.enter_context(Served(**engine, **flags))
            for flags in ({}, {"speculative_config": config})
        )
        found = in_turns(plain, drafting, ask)
    return {"name": name, "engine": engine, "speculative_config": config, **found}


def embedded() -> Iterator[Row]:
    always = {"num_speculative_tokens_per_batch_size": [[1, 1, 4]]}
    ask = decode(1, 400, 0.7, text=True)
    yield compare("embedded", ask, DRAFT, model="embedded")
    yield compare("embedded, 4 drafts in each pass", ask, DRAFT | always, model="embedded")


def streams() -> Iterator[Row]:
    for config in (DRAFT, {"method": "suffix"}):
        ask = decode(32, 200, 0.7, text=True)
        yield compare("32 streams", ask, config, model="embedded")


def synthetic() -> Iterator[Row]:
    config = {"method": "ngram", "num_speculative_tokens": 4, "synthetic_acceptance_rate": 0.8}
    for dtype in ({}, {"quantization": "int8"}):
        yield compare("synthetic acceptance 0.8", decode(1, 128, 0.7), config, **REAL, **dtype)


def replay() -> Iterator[Row]:
    for dtype in ({}, {"quantization": "int8"}):
        ask = decode(1, 256, 0.7, again=True)
        yield compare("replay", ask, {"method": "suffix"}, **REAL, **dtype)


def indexes() -> Iterator[Row]:
    for name, make in (("ngram", ngram_proposer), ("suffix", suffix_proposer)):
        for context in CONTEXTS:
            yield _index(name, make, context)
    yield _answers()


def _index(name: str, make: Callable[[SpeculativeConfig, int], Any], context: int) -> Row:
    """Measure the proposer's time per token behind a text of `context` tokens."""
    config = SpeculativeConfig(name, 4, prompt_lookup_min=2)  # type: ignore[arg-type]
    truth = _text(context + DRAFTED_TOKENS + 64)
    states = _states(truth.copy(), context)
    before, proposer = resident_now(), make(config, 1)
    proposer.begin(states, 0, _new(truth[:context]))
    slots, most = np.array([0]), np.array([4])
    begin = time.perf_counter()
    proposer.propose(states, slots, most)
    prompt = time.perf_counter() - begin
    times, drafted = [], 0
    for end in range(context + 1, context + DRAFTED_TOKENS):
        states.token_ids[0, end - 1 : end + 4] = truth[end - 1 : end + 4]  # over the drafts
        states.num_tokens[0] = end
        begin = time.perf_counter()
        drafted += int(proposer.propose(states, slots, most)[0])
        times.append(time.perf_counter() - begin)
    return {
        "name": "indexes",
        "method": name,
        "context": context,
        "median_us_per_token": round(statistics.median(times) * 1e6, 2),
        "mean_us_per_token": round(statistics.fmean(times) * 1e6, 2),
        "prompt_us_per_token": round(prompt / context * 1e6, 3),
        "drafts_per_token": round(drafted / len(times), 2),
        "megabytes": round((resident_now() - before) / 1e6, 1),
    }


def _answers() -> Row:
    """Return the memory of `suffix` after one, two and three times the answers that it keeps."""
    before, proposer = resident_now(), suffix_proposer(SpeculativeConfig("suffix", 24), 1)
    text, megabytes = _text(2048), []
    states = _states(text, len(text))
    for number in range(1, 3 * 512 + 1):
        states.token_ids[0, : len(text)] = np.roll(text, number)
        proposer.begin(states, 0, _new(text[:0]))
        proposer.propose(states, np.array([0]), np.array([0]))
        proposer.end(states, 0)
        if number % 512 == 0:
            megabytes.append(round((resident_now() - before) / 1e6, 1))
    return {"name": "answers", "tokens": [2**20 * i for i in (1, 2, 3)], "megabytes": megabytes}


def _text(count: int) -> Any:
    """Return a text over few phrases, with repeats of all lengths."""
    rng = np.random.default_rng(0)
    phrases = rng.integers(0, 50_000, (400, 6))
    chosen = rng.zipf(1.3, -(-count // 6)) % len(phrases)
    return phrases[chosen].reshape(-1)[:count].astype(np.int32)


def _states(tokens: Any, known: int) -> Any:
    row = np.zeros((1, len(tokens) + 64), np.int32)
    row[0, : len(tokens)] = tokens
    return SimpleNamespace(token_ids=row, num_tokens=np.array([known]))


def _new(prompt: Any) -> Any:
    return SimpleNamespace(token_ids=prompt, options=SimpleNamespace(cache_salt=None))


BARS = {each.__name__: each for each in (embedded, streams, synthetic, replay, indexes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BARS)}; or all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name in args.names or BARS:
        for row in BARS[name]():
            print(json.dumps(row), flush=True)
            if args.json:
                write_json(
                    args.json,
                    row | circumstances("speculation", "python benchmarks/speculation.py"),
                )


if __name__ == "__main__":
    main()
