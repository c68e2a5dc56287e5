"""Features combined at random: `python -m tests.fuzz.combinations`.

Whatever else an engine does, a request's tokens, log-probabilities and text are those of the
request alone in a plain engine: nobody beside it, its prompt in one piece, nothing cached. No
block is left behind, prefixes are found, and the counters add up.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from quire.core.errors import ConfigError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import RequestOutputKind
from tests.fuzz.driven import Answer, Engine
from tests.fuzz.engines import PLENTY, World, draw_world

MAX_STEPS = 5_000
PLAIN: dict[str, Any] = {
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "num_gpu_blocks_override": 128,
    "pipeline_parallel_size": 1,
}


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
    """Each request's answer, by itself in a plain engine; they come in the same order."""
    final = RequestOutputKind.FINAL_ONLY
    answers: list[list[Answer]] = [[] for _ in world.asked]
    engine = Engine(world, folder, PLAIN)
    with engine.llm:
        for number, asked in sorted(enumerate(world.asked), key=lambda each: each[1].comes):
            engine.ask("r", asked, final)
            while engine.core.has_work():
                engine.step()
            answers[number] = told(engine.outputs["r"], final)
    for answer in itertools.chain.from_iterable(answers):
        reason = answer["finish_reason"]
        ruled_out = reason == "error" and "rule out every token" in answer["stop_reason"]
        assert ruled_out or reason in ("stop", "length", "repetition"), answer
    return answers


def together(
    world: World, folder: Path, expected: list[list[Answer]]
) -> tuple[Engine, list[list[Answer]]]:
    """All of them, as the world has it."""
    engine = Engine(world, folder, world.flags)
    if world.oracle:
        engine.draft_from(world, expected)
    with engine.llm:
        engine.fail_at(world.failures)
        got = _live(engine, world)
        if world.again not in (None, "restarted"):
            _once_more(engine, world, folder, expected)
    if world.again == "restarted":
        _once_more(engine, world, folder, expected)
    outputs = [engine.outputs[f"r{i}"] for i in range(len(world.asked))]
    _check_counts(engine, world, outputs)
    _check_hits(engine, world, outputs)
    return engine, got


def _live(engine: Engine, world: World) -> list[list[Answer]]:
    kinds = [RequestOutputKind(asked.kind) for asked in world.asked]
    names = [f"r{i}" for i in range(len(world.asked))]
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
    return [told(engine.outputs[name], kind) for name, kind in zip(names, kinds, strict=True)]


def _once_more(engine: Engine, world: World, folder: Path, expected: list[list[Answer]]) -> None:
    """Ask all again: the same engine, which may have slept, or another with the same flags."""
    if world.again == "restarted":
        again = Engine(world, folder, world.flags)
        if world.oracle:
            again.draft_from(world, expected)
        with again.llm:
            got = _live(again, world)
    else:
        if world.again == "asleep":
            engine.llm.sleep()
            engine.llm.wake_up()
        again = Engine(world, folder, world.flags, engine)
        if world.oracle:
            again.draft_from(world, expected)
        later = [replace(asked, comes=25 - asked.comes) for asked in world.asked]
        got = _live(again, replace(world, asked=later))
        again.num_failed = engine.num_failed
    _compare(world, again, got, expected)


def _check_end(engine: Engine) -> None:
    """Nothing is left."""
    engine.scheduler.check_integrity()
    assert engine.scheduler.kv.pool.num_used == 0, "blocks are left"
    left = engine.runner.states._slots.keys() - set(engine.scheduler._steps.removed)
    assert not left, f"the runner still has {left}"
    host = engine.scheduler.stats().host_tier
    assert host is None or host.num_requests_swapped == 0, "swapped blocks are left"


def _check_counts(engine: Engine, world: World, outputs: list[list[RequestOutput]]) -> None:
    if world.again in ("same", "asleep"):
        return  # they counted twice
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
    if any("truncate_prompt_tokens" in each.params or each.images for each in world.asked):
        return
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
        ends = "finish_reason", "stop_reason"
        cut = one["finish_reason"] in ("abort", "error") and any(one[k] != other[k] for k in ends)
        for key, a in one.items():
            b = other[key]
            if cut and (a is None or key not in ("tokens", "logprobs", "prompt_logprobs")):
                continue
            if a != (b[: len(a)] if cut else b):
                return f"completion {index}: {key}: {a!r} is not {b!r}"
    ended = all(answer["finish_reason"] not in ("abort", "error", None) for answer in got)
    return "completions are missing" if got and ended and len(got) < len(wanted) else None


def _compare(
    world: World, engine: Engine, got: list[list[Answer]], expected: list[list[Answer]]
) -> None:
    """Raise AssertionError where an answer is another one, or ended early for no reason."""
    for i, (asked, one, other) in enumerate(zip(world.asked, got, expected, strict=True)):
        found = difference(one, other)
        assert found is None, f"request {i}: {found}"
        reasons = {answer["finish_reason"] for answer in one}
        ruled_out = any(answer["finish_reason"] == "error" for answer in other)
        assert engine.num_failed or ruled_out or "error" not in reasons, f"request {i}: {one}"
        assert asked.stays is not None or "abort" not in reasons, f"request {i} was aborted"


def run(world: World) -> Counter[str]:
    """Live through it, and count what befell it.

    Raises:
        AssertionError: a promise is broken.
    """
    with tempfile.TemporaryDirectory() as temporary:
        expected = alone(world, Path(temporary))
        engine, got = together(world, Path(temporary), expected)
    _compare(world, engine, got, expected)
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
