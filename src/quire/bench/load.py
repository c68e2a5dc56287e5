"""The requests of one repetition of `quire bench serve`: what, when, and over how many clients."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

from quire.bench.datasets import DATASETS, Ask, complete
from quire.bench.workload import Ramp, arrival_times
from quire.core.errors import ConfigError

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and what the same client says after its answer.

    Attributes:
        arrival: seconds after the beginning at which it is due.
        follow_ups: further turns of a conversation.
        repeats: its prompt begins as another's did that came before.
    """

    body: dict[str, Any]
    arrival: float = 0.0
    follow_ups: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """One repetition's requests and how they are sent."""

    path: str
    requests: list[Request]
    num_clients: int
    closed_loop: bool
    """Requests have no arrival time of their own: each is sent when a client is free."""
    fixed: bool = False
    """The next repetition sends the same prompts."""

    def __len__(self) -> int:
        """Requests, each turn of a conversation counted."""
        return sum(1 + len(request.follow_ups) for request in self.requests)


def make_load(args: argparse.Namespace, model: str, repetition: int) -> Load:
    """The requests of one repetition (−1 is the warm-up); the same for the same `--seed`.

    Raises:
        ConfigError: a flag does not go with the data set, or its file is wrong.
    """
    args = complete(args)
    seed = [args.seed, repetition + 1]
    options: dict[str, Any] = {
        "model": model,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if args.ignore_eos:
        options["ignore_eos"] = True
    chat = args.endpoint == "chat"
    dataset = DATASETS[args.dataset_name]
    asks = dataset.make(args, seed)
    ramp = _ramp(args)
    arrivals = _arrivals(args, asks, ramp, seed)
    return Load(
        path=CHAT_PATH if chat else COMPLETIONS_PATH,
        requests=[
            Request(_body(options, ask, chat=chat), arrival, ask.follow_ups, ask.repeats)
            for ask, arrival in zip(asks, arrivals, strict=True)
        ],
        num_clients=args.num_clients,
        closed_loop=math.isinf(args.request_rate) and ramp is None and asks[0].arrival is None,
        fixed=dataset.fixed,
    )


def next_body(body: dict[str, Any], answer: str, follow_up: str) -> dict[str, Any]:
    """A conversation's next request: all that was said, the answer, and the next turn."""
    if "messages" in body:
        said = [{"role": "assistant", "content": answer}, {"role": "user", "content": follow_up}]
        return {**body, "messages": [*body["messages"], *said]}
    return {**body, "prompt": f"{body['prompt']}{answer}\n{follow_up}"}


def _body(options: dict[str, Any], ask: Ask, *, chat: bool) -> dict[str, Any]:
    asked = [{"role": "user", "content": ask.prompt}] if chat else ask.prompt
    return {**options, "max_tokens": ask.output_len, "messages" if chat else "prompt": asked}


def _arrivals(
    args: argparse.Namespace, asks: list[Ask], ramp: Ramp | None, seed: list[int]
) -> list[float]:
    given = [ask.arrival for ask in asks if ask.arrival is not None]
    if not given:
        return arrival_times(len(asks), args.request_rate, args.burstiness, seed, ramp)
    if math.isfinite(args.request_rate) or ramp is not None:
        raise ConfigError(
            "A trace brings its own moments of arrival.",
            fix="Leave out --request-rate, --request-rates and the flags of a ramp.",
            param="--request-rate",
        )
    return given


def _ramp(args: argparse.Namespace) -> Ramp | None:
    """The ramp that the flags describe.

    Raises:
        ConfigError: they are not complete, or there is a rate beside them.
    """
    values = (args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
    if values == (None, None, None):
        return None
    if None in values or math.isfinite(args.request_rate):
        raise ConfigError(
            "A ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps, and no "
            "--request-rate.",
            param="--ramp-up-strategy",
        )
    return Ramp(*values)
