"""Divides a model's layers among pipeline stages; torch-free."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from quire.core.config import EngineConfig
from quire.models.cost import first_guess

SEQUENCES, PROMPT, OUTPUT = 8, 1024, 256
"""The load whose predicted time is divided: so many sequences, each with so many tokens of prompt
and of answer."""

Cuts = tuple[int, int, int, tuple[int, ...]]
"""Stages without a recurrent layer, if the model has such layers; time of the slowest stage; the
sum of the stages' squared times; and where they begin and end."""


def partition(config: EngineConfig, stages: int) -> tuple[int, ...]:
    """Return how many layers each stage gets, so that the slowest one is as fast as possible.

    Each stage has at least one layer, and a recurrent one if possible. Layers that share keys and
    values are on one stage. Of divisions as fast as each other a more even one is taken.
    """
    times = layer_times(config)
    total = [0, *accumulate(times)]
    recurrent = {*config.model.layers_with("recurrent")}
    best: dict[int, Cuts] = {0: (0, 0, 0, (0,))}  # by the number of layers of the stages so far
    for _ in range(stages):
        best = {
            end: min(
                (
                    lacking + (bool(recurrent) and recurrent.isdisjoint(range(begin, end))),
                    max(slowest, total[end] - total[begin]),
                    squares + (total[end] - total[begin]) ** 2,
                    (*cuts, end),
                )
                for begin, (lacking, slowest, squares, cuts) in best.items()
                if begin < end and begin <= config.model.last_cut
            )
            for end in range(min(best) + 1, len(total))
        }
    cuts = best[len(times)][-1]
    return tuple(end - begin for begin, end in pairwise(cuts))


def layer_times(config: EngineConfig) -> list[int]:
    """Return each layer's predicted picoseconds for some requests, the last one's with the logits.

    Integers, so that layers of one kind take exactly as long as each other.
    """
    found = []
    for layer in range(config.model.num_hidden_layers):
        model = replace(config.model, layer_run=(layer, 1))
        cost = first_guess(replace(config, model=model))
        context = SEQUENCES * (PROMPT + OUTPUT // 2)
        decode = cost.seconds(SEQUENCES, SEQUENCES, context, context) - cost.host_seconds(SEQUENCES)
        pairs = PROMPT * (PROMPT + 1) // 2
        prompt = cost.seconds(PROMPT, 1, PROMPT, pairs) - cost.host_seconds(1)
        found.append(round((SEQUENCES * prompt + OUTPUT * decode) * 1e12))
    return found
