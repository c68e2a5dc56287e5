"""Random requests of random engines: see `tests.fuzz.engines`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

VOCAB, EOS = 300, 299
STRUCTURES: tuple[dict[str, Any], ...] = (
    {"regex": "[a-z]{3,9}"},
    {"choice": ["yes", "no", "yesterday"]},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
)


@dataclass
class Asked:
    """A request, and when it comes and goes.

    Attributes:
        prompt: token ids.
        embeds: given as embeddings, these being the seed of each row.
        params: fields of `SamplingParams`.
        adapter: 0 is none.
        comes: the step before which it comes.
        stays: steps after which its client goes away; None is to the end.
        kind: an `output_kind`.
        images: numbers of the pictures that the prompt's image tokens stand for.
    """

    prompt: list[int]
    params: dict[str, Any]
    embeds: bool = False
    adapter: int = 0
    salt: str | None = None
    priority: int = 0
    comes: int = 0
    stays: int | None = None
    kind: int = 2
    images: list[int] = field(default_factory=list)


def some(random: Random, share: float, choices: dict[str, list[Any]]) -> dict[str, Any]:
    return {k: random.choice(v) for k, v in choices.items() if random.random() < share}


def draw_tokens(random: Random, count: int) -> list[int]:
    tokens = Random(random.randrange(2**32))  # one number to draw, however many they are
    return [tokens.randrange(VOCAB - 2) for _ in range(count)]


def draw_requests(random: Random, *, long: bool) -> list[Asked]:
    stems = [draw_tokens(random, random.choice([16, 40, 64, 96])) for _ in range(2)]
    if long:
        stems[0] = draw_tokens(random, random.randint(900, 1200))
    lora, embeds, spread = (random.random() < share for share in (0.3, 0.12, 0.7))
    asked: list[Asked] = []
    for _ in range(random.randint(2, 4 if long else 10)):
        if asked and random.random() < 0.2:
            prompt = random.choice(asked).prompt
        else:
            stem = random.choice([*stems, []])
            prompt = stem + draw_tokens(random, random.choice([1, 3, 16, random.randint(1, 150)]))
        given = embeds and random.random() < 0.5
        asked.append(
            Asked(
                list(prompt),
                draw_params(random, embeds=given),
                embeds=given,
                adapter=random.randint(0, 3) if lora else 0,
                salt=random.choice([None, None, None, "salt"]),
                priority=random.randint(0, 3),
                comes=random.randint(0, 25) if spread else 0,
                stays=random.randint(1, 30) if random.random() < 0.1 else None,
                kind=random.choice([0, 1, 2, 2]),
            )
        )
    return asked


def draw_params(random: Random, *, embeds: bool) -> dict[str, Any]:
    params: dict[str, Any] = {"max_tokens": random.choice([1, 2, 5, 12, 24, 40, 70])}
    params["temperature"] = random.choice([0.0, 0.0, 0.7, 1.0, 3.0])
    if params["temperature"]:
        params["seed"] = random.randrange(2**31)
        params |= some(
            random, 0.25, {"top_p": [0.5, 0.95], "top_k": [1, 5, 40], "min_p": [0.02, 0.3]}
        )
    if random.random() < 0.2:
        params["structured_outputs"] = random.choice(STRUCTURES)
        params |= some(random, 0.4, {"logprobs": [0, 3]})
        return params
    params |= some(
        random,
        0.2,
        {
            "n": [2, 3],
            "logprobs": [0, 1, 5, 20],
            "presence_penalty": [-1.5, 0.8],
            "frequency_penalty": [-0.7, 1.1],
            "repetition_penalty": [0.7, 1.3],
            "stop_token_ids": [draw_tokens(random, 30)],
            "logit_bias": [dict.fromkeys(draw_tokens(random, 9), 4.0)],
            "allowed_token_ids": [draw_tokens(random, 40)],
            "bad_words": [["a", "ab"], [" x", "e"]],
            "ignore_eos": [True],
        },
    )
    if not embeds and random.random() < 0.2:
        params["prompt_logprobs"] = random.choice([0, 2, 7])
    if random.random() < 0.2:
        params["stop"] = random.choice([["a", "b", "c", "d", "e"], ["m ", "q"], ["\x00", "é"]])
        params |= some(random, 0.3, {"include_stop_str_in_output": [True]})
    if random.random() < 0.2:
        params["min_tokens"] = random.randint(1, params["max_tokens"])
    return params
