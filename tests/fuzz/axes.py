"""Further features of random worlds, drawn after all others: see `tests.fuzz.engines`."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.asked import Asked, draw_tokens, some

TOOL_CALL: dict[str, Any] = {
    "structural_tag": {
        "structures": [{"begin": "a", "schema": {"type": "integer"}, "end": "e"}],
        "triggers": ["a"],
    }
}
"""A call begins at the letter, which random weights write now and then."""
MARKS = {"begins": ("a", "<t>"), "ends": ("e", "m")}
STRUCTURES: tuple[dict[str, Any], ...] = (
    TOOL_CALL,
    {"grammar": 'root ::= "yes" | [a-f]+ "." root'},
    {"grammar": "start: WORD+\nWORD: /[a-z]{1,3}[ .]/"},
    {"json_object": True},
    {"json_object": True, "disable_any_whitespace": True},
    {"json": {"type": "array", "items": {"enum": [1, "é", None]}, "minItems": 2}}
    | {"whitespace_pattern": "[ ]?"},
    {"json": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}}
    | {"disable_additional_properties": False},
    {"regex": "(é|[0-9]){2,}", "reasoning": MARKS},
    {"choice": ["a b", "a", "é😀"], "reasoning": MARKS},
)
MODES = ("raw_logits", "processed_logits", "processed_logprobs")


def add_axes(random: Random, world: Any) -> None:
    """Change a world: its requests, what its log-probabilities report, its ranks, its end."""
    for asked in world.asked:
        asked.params |= _params(random, asked)
    if random.random() < 0.3:
        world.numbers["logprobs_mode"] = random.choice(MODES)
    if random.random() < 0.1:
        world.numbers["max_logprobs"] = 300
        for asked in world.asked:
            if "logprobs" in asked.params and random.random() < 0.5:
                asked.params["logprobs"] = random.choice([25, 300])
    world.again = random.choice([None, None, None, "same", "asleep", "restarted"])
    if world.again in (None, "restarted") and random.random() < 0.2:
        for asked in world.asked:
            if random.random() < 0.5:
                asked.params.pop("seed", None)
    _add_processes(random, world)


def _params(random: Random, asked: Asked) -> dict[str, Any]:
    params, found = asked.params, dict[str, Any]()
    if "structured_outputs" in params:
        if random.random() < 0.6:
            found["structured_outputs"] = random.choice(STRUCTURES)
        found |= some(
            random,
            0.15,
            {
                "n": [2, 3],
                "presence_penalty": [-1.5, 0.8],
                "repetition_penalty": [0.7, 1.3],
                "logit_bias": [dict.fromkeys(draw_tokens(random, 9), 4.0)],
                "bad_words": [["a", "ab"], [" x", "e"]],
                "stop": [["b", "d"], "e"],
                "stop_token_ids": [draw_tokens(random, 30)],
                "ignore_eos": [True],
            },
        )
        if not asked.embeds:
            found |= some(random, 0.1, {"prompt_logprobs": [0, 2]})
    found |= some(
        random,
        0.12,
        {
            "logprob_token_ids": [draw_tokens(random, 5)],
            "repetition_detection": [
                {"max_pattern_size": 1, "min_count": 2},
                {"max_pattern_size": 5, "min_pattern_size": 2, "min_count": 3},
            ],
            "skip_special_tokens": [False],
            "thinking_token_budget": [0, 1, 5],
        },
    )
    if "thinking_token_budget" in found:
        found["thinking_marks"] = MARKS | random.choice([{}, {"forced": "so e"}])
    if not asked.embeds:
        found |= some(random, 0.1, {"truncate_prompt_tokens": [1, 20, -1]})
        if "truncate_prompt_tokens" in found:
            found |= some(random, 0.5, {"truncation_side": ["right"]})
    if not {"stop", "structured_outputs"} & (params | found).keys():
        found |= some(random, 0.1, {"detokenize": [False]})
    return found


def _add_processes(random: Random, world: Any) -> None:
    """Give few worlds two ranks, or two stages."""
    numbers, flags, draw = world.numbers, world.flags, random.random()
    drafts = flags.get("speculative_config") or {}
    if draw > 0.1 or numbers.get("ops") or world.model == "embedded":
        return
    if draw < 0.05:
        numbers |= {"tensor_parallel_size": 2, "num_threads": 2}
    elif drafts.get("method", "ngram") in ("ngram", "suffix"):
        flags["pipeline_parallel_size"] = 2
        flags.pop("num_scheduler_steps", None)
    else:
        return
    flags.pop("cpu_offload_gb", None)
    flags["num_threads"] = 2
    world.failures, world.oracle = [], False  # they would be of one process
